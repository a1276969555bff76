// SUMMA (van de Geijn, Watts 1997) over the row and column axes of 2D tensor parallelism, q ranks each: the
// three matmuls of a linear layer and its backward, in q steps of one or two broadcasts and a reduction of
// blocks (Optimus, arXiv:2104.05343). A matrix is divided into q * q blocks; the rank at (i, j) holds block
// ij of an activation and block ji or ij of a weight. The blocks of the next step travel during a step's
// matmul.
#pragma once
#include "kernels/matmul/matmul.h"
#include "models/layers/step.h"

namespace ltrain {

/// y_ij = sum over t of x_it op(b of row rank t), [+ bias]. args as in matmul, without accumulation into y.
/// x: (m, k), this rank's block, broadcast over the column axis; b: its block, broadcast over the row axis.
void summa_outer(Step& step, Tensor y, Tensor x, Tensor b, const MatmulArgs& args = {});

/// y of column rank t = sum over j of x_ij op(b of row rank t), for t = 0 to q - 1. b is broadcast over the
/// row axis, products are summed over the column axis.
void summa_inner(Step& step, Tensor y, Tensor x, Tensor b, const MatmulArgs& args = {});

/// Gradient of a weight: w of row rank t (+)= sum over i of a_it^T c_ij, or of c_ij^T a_it with `swapped`. a
/// is broadcast over the column axis, products are summed over the row axis; the sum is a slice of dim 0 of
/// the full weight there, of dim 1 with `swapped`.
void summa_weight(Step& step, const GradBuffer& to, Tensor a, Tensor c, bool swapped);

}  // namespace ltrain
