// Biases of groups of rows, each with its own vector of a stack: the experts' linear layers.
#pragma once
#include "kernels/matmul/grouped_matmul.h"

namespace ltrain {

/// y[rows of g] += bias_g. bias: a stack of vectors (groups, ..., N), the dims between and the last being
/// columns; y: (at least all rows, columns), one dtype. Rows beyond the groups' are left alone.
void grouped_add_bias(Stream& s, Tensor y, Tensor bias, const GroupRows& rows);
/// dbias_g (+)= sum of dy[rows of g]; an empty group's is 0, or left alone with `accumulate`. dbias: f32 (f64
/// for f64), as bias.
void grouped_sum_rows(Stream& s, Tensor dbias, Tensor dy, const GroupRows& rows, bool accumulate);

}  // namespace ltrain
