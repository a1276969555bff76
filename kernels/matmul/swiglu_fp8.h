// SwiGLU and its gradient with FP8 output, for matmuls that read only the codes.
#pragma once
#include "kernels/matmul/quantize.h"

namespace ltrain {

/// swiglu_forward without y: writes the codes that quantize would make of y, and where out.transposed is
/// defined those of the transpose.
void swiglu_forward_fp8(Stream& s, const RoundedOutput& out, Tensor gate_up);

/// swiglu_backward without the gradient itself: writes the codes that quantize_both would make of it. out:
/// any FP8 dtype, shape of gate_up, and the transpose; no aliases.
void swiglu_backward_fp8(Stream& s, const RoundedOutput& out, Tensor dy, Tensor gate_up);

/// transposed: null for none.
LT_KERNEL(swiglu_forward_fp8, DType t, void* codes, void* transposed, const float* step, float* amax,
          const void* gate_up, int64_t rows, int64_t cols)
/// rows, cols: of dy.
LT_KERNEL(swiglu_backward_fp8, DType to, DType t, void* codes, void* transposed, const float* step,
          float* amax, const void* dy, const void* gate_up, int64_t rows, int64_t cols)

}  // namespace ltrain
