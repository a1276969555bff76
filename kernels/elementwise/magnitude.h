// DoRA (arXiv:2402.09353): rows of W + V, V = scale B A, have trained magnitudes. y = magnitude / norm times
// x (W + V)^T, by columns. A magnitude is the norm of W's row and a trained change, which begins at 0.
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// squares[r] = {sum over columns of w², of (w + v)²}. w, v: (R, C) of one dtype; squares: (R, 2), f32 (f64
/// for f64).
void row_squares(Stream& s, Tensor squares, Tensor w, Tensor v);

/// With magnitude = sqrt(squares[r][0]) + change[r]: factors[r] = {magnitude / sqrt(squares[r][1]),
/// 1 / magnitude}, each 0 where its divisor is 0. change: (R), dtype of the step; factors, squares: (R, 2),
/// f32 (f64 for f64).
void magnitude_factors(Stream& s, Tensor factors, Tensor squares, Tensor change);

/// y[t][c] = x[t][c] * factors[c][0]. y, x: (T, C) of one dtype, which may be the same.
void scale_columns(Stream& s, Tensor y, Tensor x, Tensor factors);

/// out[c] (+)= factors[c][1] * sum over rows of a[t][c] b[t][c]: gradient of the magnitudes, where b is x
/// (W + V)^T, and a the gradient of b. out: (C) f32 (f64 for f64).
void magnitude_gradient(Stream& s, Tensor out, Tensor a, Tensor b, Tensor factors, bool accumulate);

LT_KERNEL(row_squares, DType t, void* squares, const void* w, const void* v, int64_t rows, int64_t cols)
LT_KERNEL(magnitude_factors, DType t, void* factors, const void* squares, const void* change, int64_t rows)
LT_KERNEL(scale_columns, DType t, void* y, const void* x, const void* factors, int64_t rows, int64_t cols)
LT_KERNEL(magnitude_gradient, DType t, void* out, const void* a, const void* b, const void* factors,
          int64_t rows, int64_t cols, bool accumulate)

}  // namespace ltrain
