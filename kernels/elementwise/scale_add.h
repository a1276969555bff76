// Linear combination of two tensors. With a sum of squares the first is scaled to unit length.
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// y = a y [/ max(sqrt(squares), eps)] + b x. x, y: (n) f32 or f64; x undefined: zero. squares: (1) f64;
/// undefined: no division.
void scale_add(Stream& s, Tensor y, double a, Tensor x, double b, Tensor squares = {}, double eps = 1e-7);

LT_KERNEL(scale_add, DType t, void* y, double a, const void* x, double b, const double* squares, double eps,
          int64_t n)

}  // namespace ltrain
