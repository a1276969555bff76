// Norm with FP8 output, for matmuls that read only the codes.
#pragma once
#include "kernels/matmul/quantize.h"
#include "kernels/norm/norm.h"

namespace ltrain {

/// norm_forward without y: writes the codes that quantize would make of y.
void norm_forward_fp8(Stream& s, const NormForward& args, const RoundedOutput& out);

LT_KERNEL(norm_forward_fp8, DType t, NormShape shape, void* codes, const float* step, float* amax, void* sum,
          void* mean, void* rstd, const void* x, const void* delta, const void* weight, const void* bias,
          DropoutArgs dropout)

}  // namespace ltrain
