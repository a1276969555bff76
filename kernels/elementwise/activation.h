// The non-linearities of the MLP.
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// SwiGLU (arXiv:2002.05202): y = silu(gate) * up. gate_up: (T, 2F), gate first; y: (T, F).
void swiglu_forward(Stream& s, Tensor y, Tensor gate_up);
/// Gradient of swiglu_forward. dgate_up may alias gate_up.
void swiglu_backward(Stream& s, Tensor dgate_up, Tensor dy, Tensor gate_up);

/// gpt-oss's SwiGLU: with g = min(gate, 7) and u = up clamped to [-7, 7], y = g sigmoid(1.702 g) (u + 1).
/// Shapes as in swiglu_forward.
constexpr double kClampedSwigluLimit = 7.0, kClampedSwigluAlpha = 1.702;
void clamped_swiglu_forward(Stream& s, Tensor y, Tensor gate_up);
/// Gradient of clamped_swiglu_forward. dgate_up may alias gate_up.
void clamped_swiglu_backward(Stream& s, Tensor dgate_up, Tensor dy, Tensor gate_up);

/// GELU (arXiv:1606.08415): x times the normal distribution's integral up to x. erf: exact, Hugging Face's
/// gelu. tanh: the paper's approximation, Hugging Face's gelu_new.
enum class GeluForm : uint8_t { tanh, erf };
constexpr double kGeluScale = 0.7978845608028654;  // sqrt(2 / pi)
constexpr double kGeluCubic = 0.044715;
constexpr double kSqrtHalf = 0.7071067811865476;          // sqrt(1 / 2)
constexpr double kNormalDensityAt0 = 0.3989422804014327;  // 1 / sqrt(2 pi)

/// GeGLU (arXiv:2002.05202): y = gelu(gate) * up. Shapes as in swiglu_forward.
void geglu_forward(Stream& s, Tensor y, Tensor gate_up, GeluForm form = GeluForm::tanh);
/// Gradient of geglu_forward. dgate_up may alias gate_up.
void geglu_backward(Stream& s, Tensor dgate_up, Tensor dy, Tensor gate_up, GeluForm form = GeluForm::tanh);

/// x, y: (T, F).
void gelu_forward(Stream& s, Tensor y, Tensor x, GeluForm form = GeluForm::tanh);
/// Gradient of gelu_forward. dx may alias dy or x.
void gelu_backward(Stream& s, Tensor dx, Tensor dy, Tensor x, GeluForm form = GeluForm::tanh);

/// gelu_backward, and sums (F) (+)= sum over rows of dx, as rounded: the gradient of a bias that x has. sums:
/// f32 (f64 for f64). The bits are those of gelu_backward and then sum_rows.
void gelu_backward_sums(Stream& s, Tensor dx, Tensor sums, Tensor dy, Tensor x, GeluForm form,
                        bool accumulate);

LT_KERNEL(swiglu_forward, DType t, void* y, const void* gate_up, int64_t rows, int64_t cols)
LT_KERNEL(swiglu_backward, DType t, void* dgate_up, const void* dy, const void* gate_up, int64_t rows,
          int64_t cols)
LT_KERNEL(clamped_swiglu_forward, DType t, void* y, const void* gate_up, int64_t rows, int64_t cols)
LT_KERNEL(clamped_swiglu_backward, DType t, void* dgate_up, const void* dy, const void* gate_up, int64_t rows,
          int64_t cols)
LT_KERNEL(geglu_forward, DType t, void* y, const void* gate_up, int64_t rows, int64_t cols, GeluForm form)
LT_KERNEL(geglu_backward, DType t, void* dgate_up, const void* dy, const void* gate_up, int64_t rows,
          int64_t cols, GeluForm form)
LT_KERNEL(gelu_forward, DType t, void* y, const void* x, int64_t n, GeluForm form)
LT_KERNEL(gelu_backward, DType t, void* dx, const void* dy, const void* x, int64_t n, GeluForm form)
LT_KERNEL(gelu_backward_sums, DType t, void* dx, void* sums, const void* dy, const void* x, int64_t rows,
          int64_t cols, GeluForm form, bool accumulate)

}  // namespace ltrain
