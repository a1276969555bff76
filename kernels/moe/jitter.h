// Noise on the input of a router (Switch Transformer, arXiv:2101.03961): every element times its own number
// from U(1 - eps, 1 + eps). Counter-based, so that it is the same under every layout.
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/row_random.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// y = x * noise; also its own backward. x, y: (rows, C); y may alias x.
void jitter(Stream& s, Tensor y, Tensor x, const RowRandom& random, double eps);

LT_KERNEL(jitter, DType t, void* y, const void* x, int64_t rows, int64_t cols, RowRandomArgs random,
          double eps)

}  // namespace ltrain
