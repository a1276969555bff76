// RMSNorm (arXiv:1910.07467) and LayerNorm (arXiv:1607.06450) over the last dim, fused with the residual
// addition before them.
#pragma once
#include "kernels/elementwise/dropout.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

enum class NormKind : uint8_t { rms, layer };

struct NormForward {
  NormKind kind = NormKind::rms;
  Tensor x;       ///< (T, C) residual stream
  Tensor delta;   ///< (T, C) added to it first, after dropout; optional
  Tensor sum;     ///< (T, C) output: x + dropout(delta); only with delta; may not alias x
  Tensor y;       ///< (T, C) output: norm of the sum
  Tensor weight;  ///< (C)
  Tensor bias;    ///< (C), layer only
  Tensor mean;    ///< (T) output, layer only; f32 (f64 for f64), saved for backward
  Tensor rstd;    ///< (T) output, f32 (f64 for f64), saved for backward
  double eps = 1e-5;
  double weight_offset = 0;  ///< added to every weight
  Dropout dropout;           ///< dropout of delta
};
/// rms: y = v * rstd * w, rstd = 1 / sqrt(mean(v^2) + eps);  layer: y = (v - mean) * rstd * w + b;  w: weight
/// + weight_offset.  Sums in f32.
void norm_forward(Stream& s, const NormForward& args);
/// Placements of an op that writes the norm to `out`, in any dtype; for meta.
void place_norm(Stream& s, const char* name, const NormForward& args, Tensor out);

/// sum = x + dropout(delta), as in norm_forward: the output of a pipeline stage. All (T, C); sum may not
/// alias the others.
void residual_add(Stream& s, Tensor sum, Tensor x, Tensor delta, const Dropout& dropout);

struct NormBackward {
  NormKind kind = NormKind::rms;
  Tensor dy, x, weight, mean, rstd;  ///< x: input of the norm
  Tensor dx;  ///< (T, C) in and out: gradient of the residual stream; the norm's gradient is added to it
  Tensor dweight, dbias;     ///< (C) f32 (f64 for f64)
  bool accumulate = false;   ///< dweight, dbias: += instead of =
  bool first = false;        ///< dx: = instead of +=
  double weight_offset = 0;  ///< same as in the forward
};
void norm_backward(Stream& s, const NormBackward& args);

struct NormShape {
  NormKind kind;
  int64_t rows, cols;
  double eps;
  bool accumulate, first;
  double weight_offset = 0;
  template <class F>
  void sizes(F&& f) const {  // names for messages
    f("rows", rows), f("cols", cols);
  }
};
LT_KERNEL(norm_forward, DType t, NormShape shape, void* y, void* sum, void* mean, void* rstd, const void* x,
          const void* delta, const void* weight, const void* bias, DropoutArgs dropout)
LT_KERNEL(residual_add, DType t, void* sum, const void* x, const void* delta, int64_t rows, int64_t cols,
          DropoutArgs dropout)
LT_KERNEL(norm_backward, DType t, NormShape shape, void* dx, void* dweight, void* dbias, const void* dy,
          const void* x, const void* weight, const void* mean, const void* rstd)

}  // namespace ltrain
