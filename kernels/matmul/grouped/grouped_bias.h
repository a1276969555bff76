// Biases and magnitudes of groups of rows, each with its own vector of a stack: linear layers of experts.
#pragma once
#include "kernels/matmul/grouped/grouped_matmul.h"

namespace ltrain {

/// y[rows of g] += bias_g. bias: a stack of vectors (groups, ..., N); all dims but the first together are the
/// columns. y: (at least all rows, columns), same dtype. Rows beyond the groups are unchanged.
void grouped_add_bias(Stream& s, Tensor y, Tensor bias, const GroupRows& rows);
/// dbias_g (+)= sum of dy[rows of g]; 0 for an empty group, unchanged with `accumulate`. dbias: f32 (f64 for
/// f64), shape of bias.
void grouped_sum_rows(Stream& s, Tensor dbias, Tensor dy, const GroupRows& rows, bool accumulate);

/// scale_columns and magnitude_gradient (kernels/elementwise/magnitude.h) of the rows of each group. factors:
/// (groups, N, 2), f32 (f64 for f64). y, x: (at least all rows, N) of one dtype, which may be the same.
void grouped_scale_columns(Stream& s, Tensor y, Tensor x, Tensor factors, const GroupRows& rows);
/// out: f32 (f64 for f64), N elements for each group; 0 for an empty group, unchanged with `accumulate`.
void grouped_magnitude_gradient(Stream& s, Tensor out, Tensor a, Tensor b, Tensor factors,
                                const GroupRows& rows, bool accumulate);

}  // namespace ltrain
