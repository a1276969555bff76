// DoRA of experts: the rows of each expert's W + scale B A have trained magnitudes, as in linear_dora.cpp.
// scale B A is the gradient of A's input, where the rows of scale B are gradients of its output.
#include <algorithm>

#include "kernels/elementwise/magnitude.h"
#include "kernels/matmul/grouped/grouped_bias.h"
#include "kernels/meta/placement_rules.h"
#include "models/moe/expert_adapters.h"

namespace ltrain {
namespace {

constexpr int64_t kProductOfExperts = int64_t{32} << 20;  // elements of scale B A at once

/// True if a rank has some rows of each matrix of a stack with `rank` dims, columns last.
bool cut_within(Placement p, int rank) {
  return p.kind == Placement::sharded && p.dim > 0 && p.dim < rank - 1;
}

/// A view (rows, columns) of a stack (experts, ..., columns). `columns` of 1: of a vector for each expert.
/// Ranks with other rows of each expert have rows that vary.
Tensor rows_of(Step& step, const Tensor& stack, int64_t columns = 0) {
  const int rank = columns > 0 ? stack.shape.rank + 1 : stack.shape.rank;
  if (columns == 0) columns = stack.shape[-1];
  Tensor rows = place_apart(step.compute, stack);
  if (step.compute.meta())
    for (int i = 0; i < kAxisCount; ++i) {
      const Axis axis = static_cast<Axis>(i);
      const Placement p = stack.record->place[axis];
      if (cut_within(p, rank)) place_set(step.compute, rows, axis, Placement::V());
      if (p == Placement::S(rank - 1)) place_set(step.compute, rows, axis, Placement::S(1));
    }
  return rows.flat(0, {stack.elements() / columns, columns});
}

}  // namespace

void ExpertAdapters::declare_magnitudes(ParameterStore& store, ParameterSpec change, int frozen, bool sums) {
  change.adapter = true;
  frozen_ = frozen;
  sums_ = sums;
  change_ = store.add({std::move(change)});
}

Tensor ExpertAdapters::magnitude_factors(Step& step) const {
  const Tensor stack = step.params.value(frozen_), w = rows_of(step, stack), a = step.params.value(a_);
  const int64_t in = w.cols(), experts = factor_[0], each = w.rows() / experts,
                most = std::clamp<int64_t>(kProductOfExperts / (each * in), 1, experts);
  const auto pairs = [&](const char* name) {
    return step.memory.allocate(MemoryKind::temporaries, name, step.stat_type(), {experts, each, 2});
  };
  Tensor factors = pairs("DoRA factors of experts"), squares = pairs("DoRA squares of experts"),
         all = scaled_b(step), product = step.temporary("DoRA product of experts", {most * each, in});
  const Tensor b = rows_of(step, all);
  for (int64_t first = 0; first < experts; first += most) {
    const int64_t n = std::min(most, experts - first), row = first * each;
    const Tensor part = product.narrow(0, n * each);
    grouped_matmul_dx(step.compute, part, b.narrow(row, n * each), a.narrow(first, n),
                      GroupRows(static_cast<size_t>(n), each));
    row_squares(step.compute, squares.narrow(first, n), w.narrow(row, n * each), part);
  }
  for (Tensor* t : {&product, &all}) step.release(*t);
  if (sums_ && step.groups.tensor.size() > 1) step.groups.tensor.all_reduce(step.compute, squares);
  const Tensor change = step.params.value(change_);
  ltrain::magnitude_factors(step.compute, factors, squares, rows_of(step, change, 1).flat(0, {w.rows()}));
  step.release(squares);
  if (step.compute.meta())
    for (int i = 0; i < kAxisCount; ++i)
      if (const Axis axis = static_cast<Axis>(i); cut_within(stack.record->place[axis], stack.shape.rank))
        place_set(step.compute, factors, axis, Placement::S(1));
  return factors;
}

Tensor ExpertAdapters::before_magnitudes(Step& step, Tensor dy, const GroupRows& rows) const {
  if (!multiplies()) return dy;
  Tensor factors = magnitude_factors(step);
  const Tensor before = step.temporary("d DoRA of experts", dy.shape);
  grouped_scale_columns(step.compute, before, dy, factors, rows);
  step.release(factors);
  return before;
}

void ExpertAdapters::magnitude_backward(Step& step, Tensor before, Tensor x, Tensor factors,
                                        const GroupRows& rows, const ExpertDropout& drop, bool last) const {
  // The output before the magnitudes, again: it is not kept.
  Tensor y = step.temporary("DoRA output of experts", before.shape);
  grouped_matmul(step.compute, y, x, step.params.value(frozen_), rows);
  add_factors(step, y, x, rows, drop);
  const GradBuffer to = step.params.accumulate(change_);
  grouped_magnitude_gradient(step.compute, to.tensor, before, y, factors, rows, to.accumulate);
  if (last) step.params.grad_ready(change_);
  step.release(y);
}

}  // namespace ltrain
