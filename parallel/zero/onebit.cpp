// 1-bit Adam and 1-bit LAMB: after a warm-up the second moment stays, and ranks average the first moments
// that each makes of its own gradient, in one bit an element, in the place of gradients
// (compressed_all_reduce.cpp).
#include <algorithm>

#include "kernels/elementwise/scale_add.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/optimizer/onebit.h"
#include "parallel/zero/parameter_store.h"

namespace ltrain {

bool ParameterStore::frozen(const Bucket& b) const {
  return is_onebit(b.kind.rule.rule) && step_ > layout_.optimizer.freeze_step;
}

/// What stands for the squares of a gradient that nobody has: the mean over ranks of those of each rank's
/// own, times the number of ranks.
void ParameterStore::add_own_squares(const Bucket& b, Tensor total) {
  const Tensor own = place_apart(*compute_, b.grad, b.grad.record ? b.grad.record->name : "");
  if (compute_->meta())
    for (int i = 0; i < kAxisCount; ++i)
      if (const Axis a = static_cast<Axis>(i);
          own.record->place[a] == Placement::P() || own.record->place[a] == Placement::R())
        if (a != Axis::pipeline) place_set(*compute_, own, a, Placement::S(0));
  fill_zero(*compute_, own_squares_);
  if (compute_->meta()) place_zero(own_squares_);
  sum_squares(*compute_, own_squares_, own);
  scale_add(*compute_, total, 1, own_squares_, shard_group(b).size());
}

/// What directions are multiplied by.
void ParameterStore::move_coefficients(bool after) {
  onebit_coefficients(*compute_, coefficients_, tensor_sums_, after, layout_.optimizer.lamb_limits);
}

void ParameterStore::update_onebit(const AdamwArgs& step) {
  LT_CHECK(!layout_.sharding.shards_optimizer(), "moments of all elements on every rank");
  const int64_t freeze = layout_.optimizer.freeze_step;
  const bool lamb = layout_.optimizer.rule == UpdateRule::onebit_lamb;
  const auto each = [&](auto f) {
    for (Bucket& b : buckets_)
      if (is_onebit(b.kind.rule.rule) && moves(b)) f(b);
  };
  each([&](Bucket& b) {
    const Group& g = shard_group(b);
    const Range r = range(b, 0, b.padded);
    // The first moment that would be, were this rank's gradient that of all: their mean is the average.
    if (compute_->meta())
      for (int i = 0; i < kAxisCount; ++i)
        if (const Axis a = static_cast<Axis>(i);
            g.comm->axes().has(a) && r.grad.record->place[a] == Placement::P())
          place_as(*compute_, "moment of one rank", a, r.grad, Placement::P(), Placement::S(0));
    scale_add(*compute_, r.grad, (1 - step.beta1) * step.grad_scale * g.size(), r.moments[0], step.beta1);
    if (lamb && step_ == freeze + 1) cast(*compute_, r.moments[2], r.moments[1]);
    if (g.size() == 1) return;
    g.stream->wait(compute_->record());
    compressed_all_reduce(b, r.grad, 1.0 / g.size(), r.moments[1], true);
    b.done = g.stream->record();
  });
  if (lamb) fill_zero(*compute_, tensor_sums_);
  each([&](Bucket& b) {
    compute_->wait(b.done);
    each_parameter(b, 0, b.padded, [&](const Parameter& p, int64_t from, int64_t n) {
      const Range r = range(b, from, n);
      const OnebitArgs a{args_of(p.rule, step), freeze};
      if (!lamb) {
        onebit_adam(*compute_, r.master, r.moments[0], r.moments[1], r.grad, r.low, p.rule.decay, a);
        average(b, from, r.master, step.step);
        return;
      }
      onebit_lamb_direction(*compute_, r.master, r.moments[0], r.moments[1], r.moments[2], r.grad,
                            p.rule.decay, a);
      onebit_ratio(*compute_, tensor_sums_.flat(2 * p.tensor, {1}), r.moments[1], r.moments[2], a);
    });
  });
  if (!lamb) return;
  // The parts of a tensor that other ranks have, experts among them.
  for (const Group* g :
       {&groups_->gradient, &groups_->tensor, &groups_->depth, &groups_->row, &groups_->column}) {
    if (g->size() == 1) continue;
    if (compute_->meta())
      for (int i = 0; i < kAxisCount; ++i)
        if (const Axis a = static_cast<Axis>(i); g->comm->axes().has(a))
          place_set(*compute_, tensor_sums_, a, Placement::V());
    g->stream->wait(compute_->record());
    g->comm->all_reduce(*g->stream, tensor_sums_, ReduceOp::max);
    compute_->wait(g->stream->record());
  }
  move_coefficients(true);
  move_along(step, UpdateRule::onebit_lamb);
}

}  // namespace ltrain
