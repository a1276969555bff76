// Matmuls of groups of rows, each with its own matrix of a stack: linear layers of experts.
#pragma once
#include <vector>

#include "kernels/matmul/matmul.h"

namespace ltrain {

/// Number of consecutive rows of each group, in order; known on the host. Groups may be empty.
using GroupRows = std::vector<int64_t>;
int64_t total_rows(const GroupRows& rows);
/// Matrix of group g of a stack: (rows, K).
Tensor group_matrix(const Tensor& w, int64_t g);

/// y[rows of g] = x[rows of g] w_g^T. w: a stack of matrices (groups, ..., K); the dims between are rows. x:
/// (at least all rows, K), y: (at least all rows, N). Rows beyond the groups are unchanged.
void grouped_matmul(Stream& s, Tensor y, Tensor x, Tensor w, const GroupRows& rows);
/// dx[rows of g] = dy[rows of g] w_g.
void grouped_matmul_dx(Stream& s, Tensor dx, Tensor dy, Tensor w, const GroupRows& rows);
/// dw_g (+)= dy[rows of g]^T x[rows of g]; 0 for an empty group, unchanged with `accumulate`. dw: f32 (f64
/// for f64), shape of w.
void grouped_matmul_dw(Stream& s, Tensor dw, Tensor dy, Tensor x, const GroupRows& rows, bool accumulate);

}  // namespace ltrain
