// f32 matmuls on the CPU that skip the zeros of one operand.
#pragma once
#include "kernels/matmul/sparse_gemm.h"
#include "kernels/tensor/kernel.h"

namespace ltrain {

/// out (m, n) = [out +] a (m, k) op(b) [+ bias (n)], contiguous f32. b: (n, k) with trans_b, else (k, n),
/// with zeros anywhere. Same bits as matmul_packed for finite a, but for the sign of a zero; a zero
/// times infinity or NaN is skipped as well. `gradient`: out (n, m) = [out +] b^T a instead, a (k, m) and b
/// (k, n), without bias: a weight gradient dy^T x with zeros in dy, b.
struct SparseProduct {
  float* out = nullptr;
  const float *a = nullptr, *b = nullptr, *bias = nullptr;
  int64_t m = 0, n = 0, k = 0;
  bool trans_b = false;
  bool gradient = false;
  bool accumulate = false;  ///< without bias
};

LT_CPU_KERNEL(void matmul_sparse_cpu(const SparseProduct& p);)

}  // namespace ltrain
