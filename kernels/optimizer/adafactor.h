// Second moment of Adafactor (arXiv:1804.04235) for arbitrary parts of a matrix. Each row and each column of
// the full matrix has a sum. Every part adds to the sums of its rank before they are summed over ranks.
#pragma once
#include <cmath>

#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Consecutive elements, row-major, of a box of a matrix.
struct MatrixPart {
  int64_t first_row = 0, first_col = 0;  ///< position of the box in the matrix
  int64_t cols = 1;                      ///< columns of the box
  int64_t begin = 0, count = 0;          ///< elements of the box
  LT_HD int64_t row(int64_t i) const { return first_row + (begin + i) / cols; }
  LT_HD int64_t col(int64_t i) const { return first_col + (begin + i) % cols; }
};

/// Adds the squares of scale * grad to the sums of their rows and columns. sums: (rows + cols of the matrix)
/// f64; grad: (part.count), f32 or f64.
void factor_sums(Stream& s, Tensor sums, Tensor grad, const MatrixPart& part, int64_t rows, double scale);

/// Moves the rows and columns of factors by 1 - beta towards the means of sums; the last element becomes the
/// mean of the rows. factors: (rows + cols + 1), dtype of grad.
void factor_moments(Stream& s, Tensor factors, Tensor sums, int64_t rows, int64_t cols, double beta);

/// grad = scale * grad / sqrt(v), v = row * column / mean of the rows, at least eps^2.
void factor_direction(Stream& s, Tensor grad, Tensor factors, const MatrixPart& part, int64_t rows,
                      double scale, double eps);

/// plain_direction: for tensors other than matrices, v (n), dtype of grad, v = beta v + (1 - beta) g^2.
void plain_direction(Stream& s, Tensor grad, Tensor v, double beta, double scale, double eps);

LT_KERNEL(factor_sums, DType t, double* sums, const void* grad, MatrixPart part, int64_t rows, double scale)
LT_KERNEL(factor_moments, DType t, void* factors, const double* sums, int64_t rows, int64_t cols, double beta)
LT_KERNEL(factor_direction, DType t, void* grad, const void* factors, MatrixPart part, int64_t rows,
          int64_t factor_count, double scale, double eps)
LT_KERNEL(plain_direction, DType t, void* grad, void* v, int64_t n, double beta, double scale, double eps)

}  // namespace ltrain
