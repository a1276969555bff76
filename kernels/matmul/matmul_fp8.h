// FP8 matmul.
#pragma once
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/quantize.h"

namespace ltrain {

/// A matrix that was rounded for a product: what `of` is, or its transpose.
struct Fp8Operand {
  Tensor codes;            ///< (rows, k): the contraction is contiguous
  Tensor steps;            ///< (1), or one for each block as quantize_blocks has them
  int64_t block_rows = 0;  ///< 0: one step
  Tensor of;               ///< what it was rounded from, which says how it lies on the mesh
  bool turned = false;     ///< codes are of the transpose
};

/// out (m, n) = a b^T [+ bias] [+ out], of the numbers code * step. out: bf16, f16, f32, or f64 for tests;
/// sums in f32 (f64 for f64). Of args: accumulate, for f32 and f64 alone, and bias. Both are read along rows,
/// the only way that cards of sm_89 and sm_90 multiply fp8.
void matmul_fp8(Stream& s, Tensor out, const Fp8Operand& a, const Fp8Operand& b, const MatmulArgs& args = {});

/// cuBLASLt, with one step an operand. Where neither is turned, as in a forward, sums may be those of the
/// tensor cores, which are shorter than f32.
LT_CUDA_KERNEL(matmul_fp8, Tensor out, const Fp8Operand& a, const Fp8Operand& b, const MatmulArgs& args)
/// By mma.sync, with a step for each block of both operands (matmul_fp8_blocks_cuda.cu).
LT_CUDA_KERNEL(matmul_fp8_blocks, Tensor out, const Fp8Operand& a, const Fp8Operand& b,
               const MatmulArgs& args)

LT_CPU_KERNEL(void dequantize_wide_cpu(const Fp8Operand& x, double* to);)

}  // namespace ltrain
