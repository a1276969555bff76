#include "parallel/zero/outer_optimizer.h"

#include "kernels/elementwise/scale_add.h"
#include "kernels/elementwise/tensor_ops.h"

namespace ltrain {

OuterOptimizer::OuterOptimizer(const StoreContext& context, const ParameterLayout& layout, Weights& weights,
                               const OptimizerStates& states, const DilocoSettings& settings)
    : c_(context),
      layout_(layout),
      weights_(weights),
      states_(states),
      settings_(settings),
      buckets_(layout.buckets().size()) {}

void OuterOptimizer::allocate(const Bucket& b) {
  if (!settings_.on() || !b.kind.rule.trains()) return;
  const auto make = [&](const char* what) {
    const Tensor t = c_.memory.allocate(MemoryKind::optimizer, fmt::format("{}, bucket {}", what, b.index),
                                        c_.precision.wide(), {layout_.stored_count(b)});
    layout_.place_bucket(c_.compute, b, t, layout_.stores_pieces(b));
    return t;
  };
  buckets_[static_cast<size_t>(b.index)] = {make("weights at the last synchronization"),
                                            make("outer momentum")};
}

void OuterOptimizer::each_tensor(const std::function<void(const Tensor&)>& f) const {
  for (const State& s : buckets_) {
    f(s.anchor);
    f(s.momentum);
  }
}

void OuterOptimizer::start() {
  for (const Bucket& b : layout_.buckets())
    if (at(b).anchor.defined()) states_.copy_master(b, at(b).anchor);
}

void OuterOptimizer::synchronize() {
  for (const Bucket& b : layout_.buckets())
    if (at(b).anchor.defined()) update(b);
}

void OuterOptimizer::update(const Bucket& b) {
  Stream& s = c_.compute;
  const State& state = at(b);
  const int64_t n = state.anchor.elements();
  const double share = 1.0 / c_.groups.sites.size(), momentum = settings_.outer_momentum;
  weights_.begin_writing(b);
  const Tensor weights = states_.master(b, 0, n);
  // A site's pseudo-gradient, then the sum of all, then the direction.
  Tensor change = c_.memory.allocate(
      MemoryKind::temporaries, fmt::format("pseudo-gradient, bucket {}", b.index), c_.precision.wide(), {n});
  cast(s, change, state.anchor);
  scale_add(s, change, 1, weights, -1);
  c_.groups.sum_over_sites(s, change);
  scale_add(s, state.momentum, momentum, change, share);
  if (settings_.nesterov)
    scale_add(s, change, share, state.momentum, momentum);
  else
    cast(s, change, state.momentum);
  scale_add(s, state.anchor, 1, change, -settings_.outer_lr);
  cast(s, weights, state.anchor);
  if (b.kind.group > 0)
    weights_.quantize(b, state.anchor);
  else if (states_.has_master(b))
    cast(s, weights_.updated(b), state.anchor);
  layout_.place_bucket(s, b, state.anchor, layout_.stores_pieces(b));
  weights_.end_writing(b);
  c_.memory.release(change);
}

}  // namespace ltrain
