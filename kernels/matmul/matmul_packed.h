// Products on the CPU by packing (packed_gemm_cpu.h): f32, TF32, 16-bit types and FP8; sums in f32.
#pragma once
#include "kernels/matmul/matmul_fp8.h"
#include "kernels/matmul/packed_gemm.h"

namespace ltrain {

/// One operand where it lies. Turned: the elements that are summed over are neighbours.
struct PackedOperand {
  DType dtype = DType::f32;
  const void* data = nullptr;
  int64_t stride = 0;  ///< elements from a row to the next
  bool turned = false;
  const float* steps = nullptr;  ///< FP8, which is turned: a number is code * step
  int64_t block_rows = 0;        ///< of steps: rows that share one, in blocks of kFp8Block; 0: one step
  int64_t steps_cols = 0;
};

/// out (m, n), rows without gaps: [out +] a b [+ bias (n), of out's type]. out: f32, or 16 bits as a is. Each
/// element is summed over k in one order, whatever the sizes, the number of threads and the width of vectors;
/// in pairs in another.
struct PackedProduct {
  DType out_type = DType::f32;
  void* out = nullptr;
  PackedOperand a, b;
  const void* bias = nullptr;
  int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;  ///< f32 alone
  bool tf32 = false;        ///< operands of f32 are rounded to it
  bool pairs = false;       ///< operands of bf16 are multiplied in pairs along k, not as f32
};

/// As `matmul`, but of f64; tf32: as Stream::tf32.
void matmul_packed(Tensor out, Tensor a, Tensor b, const MatmulArgs& args, bool tf32);
/// As `matmul_fp8`, but into f64.
void matmul_fp8_packed(Tensor out, const Fp8Operand& a, const Fp8Operand& b, const MatmulArgs& args);

LT_CPU_KERNEL(void matmul_packed_cpu(const PackedProduct& p);)

}  // namespace ltrain
