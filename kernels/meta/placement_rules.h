// What an op asks of the placements of its inputs, and what it gives its outputs: checked on the meta device.
// The rules are those of local SPMD types (meta-pytorch/spmd_types) and JAX's shard_map.
#pragma once
#include <initializer_list>

#include "kernels/meta/meta.h"

namespace ltrain {

using TensorList = std::initializer_list<Tensor>;

/// How an op combines placements on one axis.
enum class Rule : uint8_t {
  elementwise,  ///< per element or per row, not linear: R with S/V gives S/V; P is refused
  linear,       ///< adds or scales: as above, and P with P gives P
  sum_rows,     ///< sums over dim 0: V or S(0) gives P, S(d) gives S(d - 1)
  sum_columns,  ///< not linear, then sums over dim 1: S(1) gives P
  sum_to_rows,  ///< adds rows to rows of a table: V or S(0) gives P, S(1) stays
};

/// Checks `ins` by the rule and gives the result to `outs`. With `accumulate` the outs are added to, so each
/// must be zero or already hold that placement. Throws Error(ExitCode::internal) that reads like a compiler's
/// message.
void place(Stream& s, std::string_view op, Rule rule, TensorList outs, TensorList ins,
           bool accumulate = false);

/// out (rows, columns) += vector (columns).
void place_add_vector(Stream& s, std::string_view op, Tensor out, Tensor vector);

/// An op reads a number of `vector` for each column of `t`, or for each group of its columns. `of_more`:
/// those of the rank's columns, out of a vector that ranks with other columns have, too.
void place_vector_of_columns(Stream& s, std::string_view op, Tensor t, Tensor vector, bool of_more);
/// The gradient of such a vector: summed over rows of `ins`.
void place_gradient_of_columns(Stream& s, std::string_view op, Tensor gradient, Tensor vector, TensorList ins,
                               bool of_more, bool accumulate);

/// Biases of rows sorted by group (kernels/matmul/grouped_bias.h), as place_grouped_matmul has its stack.
void place_grouped_bias(Stream& s, std::string_view op, Tensor y, Tensor bias);
void place_grouped_bias_gradient(Stream& s, std::string_view op, Tensor gradient, Tensor dy, bool accumulate);

/// out = a * b for matrices after transposition; `rows` says that a and b are contracted over token rows (dim
/// 0 of both), which makes V into P.
void place_matmul(Stream& s, Tensor out, Tensor a, bool trans_a, Tensor b, bool trans_b, bool accumulate);

/// Matmuls of rows sorted by group with a stack of matrices (kernels/matmul/grouped_matmul.h). Where
/// the stack is cut by groups, S(0), rows are to be those of the rank's groups, S(0). Cut in the dims after
/// the first it is as a matmul's weight.
enum class GroupedProduct : uint8_t { forward, input_gradient, weight_gradient };
/// forward: out = y, a = x, b = w. input_gradient: dx, dy, w. weight_gradient: dw, dy, x.
void place_grouped_matmul(Stream& s, Tensor out, Tensor a, Tensor b, GroupedProduct kind, bool accumulate);

/// The gradient of an operand of an elementwise op with `others`: where they are cut and the operand is not,
/// each rank has a summand of it (R becomes P); elsewhere as elementwise.
void place_operand_gradient(Stream& s, std::string_view op, Tensor gradient, Tensor operand,
                            TensorList others, bool accumulate);

/// The step's own claim about `t`: what is `from` on the axis is `to` when looked at in another way, without
/// communication (rows that vary are slices of heads after an exchange of equal parts).
void place_as(Stream& s, std::string_view op, Axis axis, Tensor t, Placement from, Placement to);

/// `t` has a few numbers for each row of a matrix whose columns are cut: where it is S(1), each rank's are
/// slices of those of all ranks one after the other, S(0).
void place_row_statistics(Stream& s, Tensor t);

/// What `t` holds is done with: to read it before it is written again is an error.
void place_spent(Stream& s, Tensor t);

/// A collective over `axes`: from one placement to another, on each of them that is larger than one.
void place_collective(Stream& s, std::string_view op, AxisSet axes, Tensor out, Tensor in, Placement from,
                      Placement to);

/// A broadcast over `axes`: `in` is what each rank has (S or V), `out` what one of them had (R).
void place_broadcast(Stream& s, std::string_view op, AxisSet axes, Tensor out, Tensor in);

/// A transfer between pipeline stages: `in` was read, `out` was written. Its placement is what the stages
/// agreed on, which their executor checks.
void place_transfer(Stream& s, std::string_view op, Tensor out, Tensor in);

/// What a transfer has brought lies on the axis as the stages agreed.
void place_received(Stream& s, Tensor t, Axis axis, Placement p);

/// At the update: a gradient must lie exactly as the shard of its parameter does.
void place_update(Stream& s, std::string_view op, Tensor parameter, Tensor gradient, Placements shard);

/// `t` leaves the step: the host reads it, or the next step begins with it. It must lie as `want` on every
/// axis, so that a collective that nothing in the step waits for cannot be forgotten either.
void place_require(Stream& s, std::string_view op, Tensor t, Placement want);
/// The same on one axis.
void place_require(Stream& s, std::string_view op, Tensor t, Axis axis, Placement want);

/// Says how `t` lies on those of `axes` that are larger than one: where something enters the step from
/// outside (a batch, a parameter) or where a rank's knowledge of itself makes it so (only one of them adds).
void place_set(Stream& s, Tensor t, AxisSet axes, Placement p);
/// A view of `t` that has a placement of its own, first that of `t`. On other devices `t` itself.
Tensor place_apart(Stream& s, Tensor t, std::string_view name);
Tensor place_apart(Stream& s, Tensor t);  ///< with the name of `t`

/// `whole` consists of `parts`, views of it with placements of their own, which must be the same on every
/// axis: it lies as they do.
void place_joined(Stream& s, std::string_view op, Tensor whole, const std::vector<Tensor>& parts);

/// out = max(out, something of `in`): it varies wherever `in` is not whole.
void place_max(Stream& s, std::string_view op, Tensor out, Tensor in);

/// Marks as all zeros.
void place_zero(Tensor t);

/// Cost of an op that reads `ins` and writes `outs` once each.
OpCost op_cost(std::string_view name, OpClass cls, double flops, TensorList outs, TensorList ins);

}  // namespace ltrain
