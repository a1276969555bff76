// Small ops on full tensors.
#pragma once
#include <vector>

#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// t = 0, any dtype.
void fill_zero(Stream& s, Tensor t);
/// out = in, converted (f32 -> bf16 rounds to nearest even). Same number of elements.
void cast(Stream& s, Tensor out, Tensor in);
/// y += x, elementwise, same dtype.
void add_to(Stream& s, Tensor y, Tensor x);
/// y *= factor, rounded to y's dtype first.
void scale_by(Stream& s, Tensor y, double factor);
/// y (T, C) += bias (C), same dtype.
void add_bias(Stream& s, Tensor y, Tensor bias);
/// out (C) (+)= sum over rows of x (T, C): gradient of a bias. out: f32 (f64 for f64).
void sum_rows(Stream& s, Tensor out, Tensor x, bool accumulate);
/// total[0] += sum of squares of x, in double, in an order that depends on the number of elements only.
/// total: (1) f64.
void sum_squares(Stream& s, Tensor total, Tensor x);
/// Several sums of squares: totals[total] += sum of squares of x for each part, one after the other, with the
/// same bits as one call for each. A GPU does them in one pass. totals: (n) f64; all x have one dtype.
struct SquaresOf {
  Tensor x;
  int64_t total = 0;
};
void sum_squares(Stream& s, Tensor totals, const std::vector<SquaresOf>& parts);
/// t[i] = mean + std * normal(seed, stream, first + i): element `first + i` of the parameter with key
/// `stream`.
void fill_normal(Stream& s, Tensor t, uint64_t seed, uint64_t stream, int64_t first, double mean, double std);
/// t[i] = value, floating dtypes.
void fill_value(Stream& s, Tensor t, double value);

LT_KERNEL(fill_zero, void* out, int64_t bytes)
LT_KERNEL(cast, DType to, DType from, void* out, const void* in, int64_t n)
LT_KERNEL(add_to, DType t, void* y, const void* x, int64_t n)
LT_KERNEL(scale_by, DType t, void* y, int64_t n, double factor)
LT_KERNEL(add_bias, DType t, void* y, const void* bias, int64_t rows, int64_t cols)
LT_KERNEL(sum_rows, DType t, void* out, const void* x, int64_t rows, int64_t cols, bool accumulate)
LT_CPU_KERNEL(void sum_squares_cpu(DType t, double* total, const void* x, int64_t n);)
struct SquaresPart {
  const void* x;
  int64_t elements, total;
};
LT_CUDA_KERNEL(sum_squares, DType t, double* totals, std::vector<SquaresPart> parts)
LT_KERNEL(fill_normal, DType t, void* out, int64_t n, uint64_t seed, uint64_t stream, int64_t first,
          double mean, double std)
LT_KERNEL(fill_value, DType t, void* out, int64_t n, double value)

}  // namespace ltrain
