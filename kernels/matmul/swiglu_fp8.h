// SwiGLU whose result is written in FP8, for products that read nothing else of it.
#pragma once
#include "kernels/matmul/quantize.h"

namespace ltrain {

/// swiglu_forward without y: the codes that quantize would make of y, which is not written.
void swiglu_forward_fp8(Stream& s, const RoundedOutput& out, Tensor gate_up);

LT_KERNEL(swiglu_forward_fp8, DType t, void* codes, const float* step, float* amax, const void* gate_up,
          int64_t rows, int64_t cols)

}  // namespace ltrain
