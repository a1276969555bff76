// SUMMA (van de Geijn, Watts 1997) over the row and column axes of a tensor-parallel grid, q ranks each: the
// three products that a linear layer and its backward need, in q steps of a broadcast or two and a reduction
// of blocks (Optimus, arXiv:2104.05343). A matrix is cut into q * q blocks; the rank at (i, j) holds block ij
// of an activation and block ji or ij of a weight. While a step multiplies, the next one's blocks travel.
#pragma once
#include "kernels/matmul/matmul.h"
#include "models/layers/step.h"

namespace ltrain {

/// y_ij = sum over t of x_it op(b of row rank t), [+ bias]. args as of matmul, which accumulates nothing into
/// y. x: (m, k) this rank's; b: its block, to be broadcast over the row axis, x over the column axis.
void summa_outer(Step& step, Tensor y, Tensor x, Tensor b, const MatmulArgs& args = {});

/// y of column rank t = sum over j of x_ij op(b of row rank t), for t = 0 .. q - 1. b is broadcast over the
/// row axis, products are summed over the column axis.
void summa_inner(Step& step, Tensor y, Tensor x, Tensor b, const MatmulArgs& args = {});

/// The gradient of a weight: w of row rank t (+)= sum over i of a_it^T c_ij, or of c_ij^T a_it with
/// `swapped`. a is broadcast over the column axis, products are summed over the row axis; the sum is a slice
/// of dim 0 of the whole there, of dim 1 with `swapped`.
void summa_weight(Step& step, const GradBuffer& to, Tensor a, Tensor c, bool swapped);

}  // namespace ltrain
