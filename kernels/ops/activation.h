// The non-linearities of the MLP.
#pragma once
#include "kernels/core/cpu_isa.h"
#include "kernels/core/stream.h"

namespace ltrain {

/// SwiGLU (arXiv:2002.05202): y = silu(gate) * up. gate_up: (T, 2F), gate first; y: (T, F).
void swiglu_forward(Stream& s, Tensor y, Tensor gate_up);
/// dgate_up may alias gate_up.
void swiglu_backward(Stream& s, Tensor dgate_up, Tensor dy, Tensor gate_up);

/// GELU by its tanh form (arXiv:1606.08415; Hugging Face's gelu_new). x, y: (T, F).
void gelu_forward(Stream& s, Tensor y, Tensor x);
/// dx may alias dy or x.
void gelu_backward(Stream& s, Tensor dx, Tensor dy, Tensor x);

LT_CPU_KERNEL(void swiglu_forward_cpu(DType t, void* y, const void* gate_up, int64_t rows, int64_t cols);
              void swiglu_backward_cpu(DType t, void* dgate_up, const void* dy, const void* gate_up,
                                       int64_t rows, int64_t cols);
              void gelu_forward_cpu(DType t, void* y, const void* x, int64_t n);
              void gelu_backward_cpu(DType t, void* dx, const void* dy, const void* x, int64_t n);)

}  // namespace ltrain
