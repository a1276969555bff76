// Packed matmuls on the CPU (packed_gemm_cpu.h): f32, TF32, 16-bit types and FP8; sums in f32.
#pragma once
#include "kernels/matmul/matmul_fp8.h"
#include "kernels/matmul/packed_gemm.h"

namespace ltrain {

/// An operand in its original layout. Transposed: contiguous along the contraction.
struct PackedOperand {
  DType dtype = DType::f32;
  const void* data = nullptr;
  int64_t stride = 0;  ///< elements from row to row
  bool transposed = false;
  const float* steps = nullptr;  ///< FP8, always transposed: a number is code * step
  int64_t block_rows = 0;        ///< rows that share a step, in blocks of kFp8Block; 0: one step
  int64_t steps_cols = 0;
};

/// out (m, n), contiguous rows: [out +] a b [+ bias (n), dtype of out]. out: f32, or the 16-bit dtype of a.
/// The order of the sum over k does not depend on sizes, threads or vector width. `pairs` has a different
/// order.
struct PackedProduct {
  DType out_type = DType::f32;
  void* out = nullptr;
  PackedOperand a, b;
  const void* bias = nullptr;
  int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;  ///< without bias; a 16-bit output is rounded once
  bool tf32 = false;        ///< f32 operands are rounded to TF32
  bool pairs = false;       ///< bf16 operands are multiplied in pairs along k instead of as f32
};

/// `matmul` without f64. `tf32`: Stream::tf32.
void matmul_packed(Tensor out, Tensor a, Tensor b, const MatmulArgs& args, bool tf32);
/// `matmul_fp8` without f64.
void matmul_fp8_packed(Tensor out, const Fp8Operand& a, const Fp8Operand& b, const MatmulArgs& args);

LT_CPU_KERNEL(void matmul_packed_cpu(const PackedProduct& p);)

}  // namespace ltrain
