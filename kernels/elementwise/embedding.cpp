#include "kernels/elementwise/embedding.h"

#include <algorithm>

#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/timeline.h"

namespace ltrain {
namespace {

/// A lookup in a table of which this rank has a part gives a summand of the result.
void place_lookup(Stream& s, Tensor y, Tensor tokens, Tensor table, Axis axis) {
  if (s.meta()->axis_size(axis) == 1 || table.record->place[axis] == Placement::R()) {
    place(s, "embedding_forward", Rule::elementwise, {y}, {tokens, table});
    return;
  }
  const Placement cut = table.record->place[axis];
  const Tensor rows = place_apart(s, table);
  place_set(s, rows, axis, Placement::R());
  place(s, "embedding_forward", Rule::elementwise, {y}, {tokens, rows});
  place_set(s, y, axis, cut == Placement::S(0) ? Placement::P() : cut);
  y.record->made_partial = {"embedding_forward of a part of the vocabulary", {}};
}

/// Bytes: dy is read once; the touched rows of the table, at most one for each row of dy, are read and
/// written. A fresh table is first filled with zeros, and not read.
OpCost gather_cost(std::string_view name, Tensor dtable, Tensor dy, int64_t own_rows, bool accumulate) {
  OpCost cost = op_cost(name, OpClass::elementwise, 1.0 * dy.elements(), {}, {dy});
  const int64_t touched = std::min(dy.rows(), own_rows) * dtable.cols() * dtype_size(dtable.dtype);
  cost.bytes += static_cast<double>(accumulate ? 2 * touched : touched + dtable.bytes());
  cost.dtype = dy.dtype;
  return cost;
}

}  // namespace

void check_tokens(const int32_t* ids, int64_t count, int64_t vocab) {
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= vocab)
      fail(ExitCode::data, "token {} at position {} of the batch is outside the vocabulary of {}", ids[i], i,
           vocab);
}

void embedding_forward(Stream& s, Tensor y, Tensor tokens, Tensor table, Tensor positions, const RowMap& rows,
                       const VocabPart& part) {
  LT_CHECK(tokens.elements() == y.rows() && table.cols() == y.cols() && table.shape[0] >= part.rows &&
               part.first + part.rows <= part.total,
           "embedding: expected {} tokens, a table of at least {} rows of {} columns, and a part within {} "
           "tokens; got {} tokens, table {}, part from {} on",
           y.rows(), part.rows, y.cols(), part.total, tokens.elements(), to_string(table.shape), part.first);
  if (s.meta()) {
    OpCost cost = op_cost("embedding_forward", OpClass::elementwise, 1.0 * y.elements(), {y}, {y, tokens});
    cost.role = OpRole::token_lookup;
    if (positions.defined()) cost.bytes += static_cast<double>(y.bytes());
    s.meta()->add(s, cost);
    place_lookup(s, y, tokens, table, part.axis);
    if (positions.defined()) place(s, "position_forward", Rule::elementwise, {y}, {y, positions});
    return;
  }
  const OpRange range(s, "embedding_forward");
  // A kernel on a GPU cannot throw: the code that copies the tokens there checks them.
  if (s.device() == DeviceKind::cuda)
    return embedding_forward_cuda(s, y.dtype, y.data, tokens.ptr<int32_t>(), table.data, positions.data,
                                  y.rows(), y.cols(), rows.args(), part);
  s.launch([=] {
    check_tokens(tokens.ptr<int32_t>(), tokens.elements(), part.total);
    LT_CPU(embedding_forward_cpu)
    (y.dtype, y.data, tokens.ptr<int32_t>(), table.data, positions.data, y.rows(), y.cols(), rows.args(),
     part);
  });
}

void position_forward(Stream& s, Tensor y, Tensor positions, const RowMap& rows) {
  LT_CHECK(positions.cols() == y.cols(), "expected positions of {} columns, got {}", y.cols(),
           to_string(positions.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost("position_forward", OpClass::elementwise, 1.0 * y.elements(), {y}, {y, y}));
    place(s, "position_forward", Rule::elementwise, {y}, {y, positions});
    return;
  }
  LT_LAUNCH(s, position_forward, y.dtype, y.data, positions.data, y.rows(), y.cols(), rows.args());
}

void embedding_backward(Stream& s, Tensor dtable, Tensor dy, Tensor tokens, const VocabPart& part,
                        bool accumulate) {
  LT_CHECK(tokens.elements() == dy.rows() && dtable.cols() == dy.cols() && dtable.shape[0] >= part.rows,
           "embedding backward: expected {} tokens and dtable of at least {} rows of {} columns, got {} "
           "tokens and dtable {}",
           dy.rows(), part.rows, dy.cols(), tokens.elements(), to_string(dtable.shape));
  if (s.meta()) {
    s.meta()->add(s, gather_cost("embedding_backward", dtable, dy, part.rows, accumulate));
    // Each rank keeps its vocabulary part's rows of the full gradient.
    Tensor cut = dtable;
    if (part.rows < part.total || dtable.shape[0] != part.total) {
      cut = place_apart(s, dtable);
      place_set(s, cut, part.axis, Placement::R());
      cut.record->zero = dtable.record->zero;
    }
    place(s, "embedding_backward", Rule::sum_to_rows, {cut}, {dy, tokens}, accumulate);
    if (cut.record != dtable.record) {
      const Placement p = cut.record->place[part.axis];
      dtable.record->place = cut.record->place;
      dtable.record->zero = false;
      place_set(s, dtable, part.axis, p == Placement::R() ? Placement::S(0) : p);
    }
    return;
  }
  LT_LAUNCH(s, embedding_backward, dy.dtype, dtable.data, dy.data, tokens.ptr<int32_t>(), dy.rows(),
            dy.cols(), dtable.shape[0], part, accumulate);
}

void position_backward(Stream& s, Tensor dpositions, Tensor dy, const RowMap& rows, bool accumulate) {
  LT_CHECK(dpositions.cols() == dy.cols(), "position backward: expected dpositions of {} columns, got {}",
           dy.cols(), to_string(dpositions.shape));
  if (s.meta()) {
    s.meta()->add(s, gather_cost("position_backward", dpositions, dy, dpositions.rows(), accumulate));
    place(s, "position_backward", Rule::sum_to_rows, {dpositions}, {dy}, accumulate);
    return;
  }
  LT_LAUNCH(s, position_backward, dy.dtype, dpositions.data, dy.data, dy.rows(), dy.cols(), rows.args(),
            dpositions.shape[0], accumulate);
}

}  // namespace ltrain
