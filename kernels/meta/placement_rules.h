// Rules for the placements of an op's inputs and outputs, checked on the meta device. They follow local SPMD
// types (meta-pytorch/spmd_types) and JAX's shard_map.
#pragma once
#include <initializer_list>

#include "kernels/meta/meta.h"

namespace ltrain {

using TensorList = std::initializer_list<Tensor>;

/// How an op combines placements on one axis.
enum class Rule : uint8_t {
  elementwise,  ///< per element or per row, not linear: R with S/V gives S/V; P is an error
  linear,       ///< adds or scales: like elementwise, and P with P gives P
  sum_rows,     ///< sums over dim 0: V or S(0) gives P, S(d) gives S(d - 1)
  sum_columns,  ///< not linear, then sums over dim 1: S(1) gives P
  sum_to_rows,  ///< adds rows to rows of a table: V or S(0) gives P, S(1) stays
};

/// Checks `ins` by the rule and sets the placement of `outs`. With `accumulate` each out must be zero or
/// already have that placement. Throws Error(ExitCode::internal) with a message like a compiler's.
void place(Stream& s, std::string_view op, Rule rule, TensorList outs, TensorList ins,
           bool accumulate = false);

/// out (rows, columns) += vector (columns).
void place_add_vector(Stream& s, std::string_view op, Tensor out, Tensor vector);

/// An op reads one number of `vector` for each column of `t`, or for each group of its columns. `of_more`:
/// `vector` also has the numbers of other ranks' columns.
void place_vector_of_columns(Stream& s, std::string_view op, Tensor t, Tensor vector, bool of_more);
/// Gradient of such a vector: sum over rows of `ins`.
void place_gradient_of_columns(Stream& s, std::string_view op, Tensor gradient, Tensor vector, TensorList ins,
                               bool of_more, bool accumulate);
/// Gradient of such a vector: sum over rows of a * b, which is linear in b.
void place_gradient_of_products(Stream& s, std::string_view op, Tensor gradient, Tensor vector, Tensor a,
                                Tensor b, bool accumulate);

/// Biases of rows sorted by group (kernels/matmul/grouped/grouped_bias.h); the stack has the rules of
/// place_grouped_matmul.
void place_grouped_bias(Stream& s, std::string_view op, Tensor y, Tensor bias);
void place_grouped_bias_gradient(Stream& s, std::string_view op, Tensor gradient, Tensor dy, bool accumulate);

/// out = a * b for matrices after transposition. If a and b are contracted over token rows (dim 0 of both), V
/// becomes P.
void place_matmul(Stream& s, Tensor out, Tensor a, bool trans_a, Tensor b, bool trans_b, bool accumulate);

/// Matmuls of rows sorted by group with a stack of matrices (kernels/matmul/grouped/grouped_matmul.h). If the
/// stack is sharded by groups, S(0), the rows must be those of the rank's groups, S(0). If it is sharded in a
/// later dim, the rules of a matmul's weight apply.
enum class GroupedProduct : uint8_t { forward, input_gradient, weight_gradient };
/// forward: out = y, a = x, b = w. input_gradient: dx, dy, w. weight_gradient: dw, dy, x.
void place_grouped_matmul(Stream& s, Tensor out, Tensor a, Tensor b, GroupedProduct kind, bool accumulate);

/// Gradient of an operand of an elementwise op with `others`. If they are sharded and the operand is not,
/// each rank has a summand of it (R becomes P); otherwise elementwise.
void place_operand_gradient(Stream& s, std::string_view op, Tensor gradient, Tensor operand,
                            TensorList others, bool accumulate);

/// Reinterprets `t` on the axis from `from` to `to`, without communication: a claim of the step. Example:
/// after an exchange of equal parts, rows that vary are slices of heads.
void place_as(Stream& s, std::string_view op, Axis axis, Tensor t, Placement from, Placement to);

/// `t` has a few numbers for each row of a matrix with sharded columns. S(1) of the matrix becomes S(0): the
/// slices of all ranks one after the other.
void place_row_statistics(Stream& s, Tensor t);

/// Marks `t` as consumed: a read before the next write is an error.
void place_spent(Stream& s, Tensor t);

/// A collective over `axes`, from one placement to another on each axis larger than one.
void place_collective(Stream& s, std::string_view op, AxisSet axes, Tensor out, Tensor in, Placement from,
                      Placement to);

/// A broadcast over `axes`: `in` has each rank's value (S or V), `out` the value of one rank (R).
void place_broadcast(Stream& s, std::string_view op, AxisSet axes, Tensor out, Tensor in);

/// A transfer between pipeline stages: `in` is read, `out` is written. The stages agree on its placement, and
/// their executor checks it.
void place_transfer(Stream& s, std::string_view op, Tensor out, Tensor in);

/// Sets the placement of received data on the axis, which the stages agreed on.
void place_received(Stream& s, Tensor t, Axis axis, Placement p);

/// At the update a gradient must have exactly the placement of its parameter's shard.
void place_update(Stream& s, std::string_view op, Tensor parameter, Tensor gradient, Placements shard);

/// `t` leaves the step: the host reads it, or the next step begins with it. It must have placement `want` on
/// every axis, so that even a collective without a later use in the step cannot be forgotten.
void place_require(Stream& s, std::string_view op, Tensor t, Placement want);
/// place_require on one axis.
void place_require(Stream& s, std::string_view op, Tensor t, Axis axis, Placement want);

/// Sets the placement of `t` on those of `axes` larger than one, for data that enters the step (a batch, a
/// parameter), or if the code of a rank determines it (only one rank adds).
void place_set(Stream& s, Tensor t, AxisSet axes, Placement p);
/// A view of `t` with its own placement, initially that of `t`. On other devices `t` itself.
Tensor place_apart(Stream& s, Tensor t, std::string_view name);
Tensor place_apart(Stream& s, Tensor t);  ///< with the name of `t`

/// `whole` consists of `parts`, views of it with their own placements, which must be equal on every axis. It
/// gets their placement.
void place_joined(Stream& s, std::string_view op, Tensor whole, const std::vector<Tensor>& parts);

/// out = max(out, values of `in`): varies on every axis on which `in` is not replicated.
void place_max(Stream& s, std::string_view op, Tensor out, Tensor in);

/// Marks as all zeros.
void place_zero(Tensor t);

/// Cost of an op that reads `ins` and writes `outs` once each.
OpCost op_cost(std::string_view name, OpClass cls, double flops, TensorList outs, TensorList ins);

}  // namespace ltrain
