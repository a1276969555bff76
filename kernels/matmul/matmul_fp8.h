// FP8 matmul.
#pragma once
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/quantize.h"

namespace ltrain {

/// A matrix quantized for a matmul: the matrix `of`, or its transpose.
struct Fp8Operand {
  Tensor codes;             ///< (rows, k): contiguous along the contraction
  Tensor steps;             ///< (1), or one step for each block in the layout of quantize_blocks
  int64_t block_rows = 0;   ///< 0: one step
  Tensor of;                ///< source of the codes; gives the mesh placement
  bool transposed = false;  ///< codes are the transpose
};

/// out (m, n) = a b^T [+ bias] [+ out] of the numbers code * step. out: bf16, f16, f32, or f64 for tests;
/// sums in f32 (f64 for f64). Of `args`, bias and accumulate are used; accumulate only for f32 and f64. Both
/// operands are read along rows: sm_89 and sm_90 multiply FP8 in no other layout.
void matmul_fp8(Stream& s, Tensor out, const Fp8Operand& a, const Fp8Operand& b, const MatmulArgs& args = {});

/// cuBLASLt, with one step for each operand. If neither operand is transposed, as in a forward, sums may have
/// the accumulators of the tensor cores, which are narrower than f32.
LT_CUDA_KERNEL(matmul_fp8, Tensor out, const Fp8Operand& a, const Fp8Operand& b, const MatmulArgs& args)
/// mma.sync, with a step for each block of both operands (matmul_fp8_blocks_cuda.cu).
LT_CUDA_KERNEL(matmul_fp8_blocks, Tensor out, const Fp8Operand& a, const Fp8Operand& b,
               const MatmulArgs& args)

LT_CPU_KERNEL(void dequantize_wide_cpu(const Fp8Operand& x, double* to);)

}  // namespace ltrain
