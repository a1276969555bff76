// Updates of optimizers that handle one element at a time, with states in any form: offloaded states come in
// windows (state_windows.h) or are updated where they are (host_updates.h), 16-bit states are widened and
// rounded again.
#pragma once
#include <vector>

#include "parallel/zero/host_updates.h"
#include "parallel/zero/state_windows.h"
#include "parallel/zero/weight_average.h"

namespace ltrain {

class ElementUpdates {
 public:
  /// `seed`: seed of stochastic rounding; `window`: elements that are widened at once.
  ElementUpdates(const StoreContext& context, const ParameterLayout& layout, const StepRules& rules,
                 const OptimizerStates& states, const GradientReducer& gradients,
                 const OffloadedWeights& offloaded, StateWindows& windows, HostUpdates& host,
                 WeightAverage& average, const UntouchedExperts& untouched, uint64_t seed, int64_t window);

  void allocate();

  /// Elements [from, from + n) of a bucket, with states on this rank: the tensors that the device holds.
  Elements elements(const Bucket& b, int64_t from, int64_t n) const;
  /// Arguments of the update `step` for parameters with rule `r`.
  OptimizerStep args_of(const ParameterRule& r, const OptimizerStep& step) const;

  /// Updates all elements with states on this rank in the bucket: now, or in finish() together with other
  /// buckets.
  void update(const Bucket& b, const OptimizerStep& step);
  /// Called after the last bucket.
  void finish(const OptimizerStep& step);
  void pass(const Bucket& b) { windows_.pass(b); }

 private:
  bool widens_gradients() const { return c_.precision.grad != c_.precision.wide(); }
  bool widens_stored() const {
    return c_.precision.master != c_.precision.wide() || c_.precision.state != c_.precision.wide();
  }
  /// True if the bucket's optimizer accepts states and gradients as stored.
  bool takes_stored(const Bucket& b) const {
    return (!widens_stored() && !widens_gradients()) ||
           (c_.precision.master == c_.precision.wide() && optimizer_of(b.kind.rule.rule).takes_halves());
  }
  /// A range that is updated at the end of a step, if no states come from offload memory.
  struct Together {
    const Bucket* bucket;
    int64_t from;
    Tensor master;  // weights of all elements, padding included
    ElementPart part;
  };
  /// Site of an update: a stream, and tensors for widened states of one window.
  struct Site {
    Stream& on;
    const std::vector<Tensor>& wide;
  };
  ElementPart part_of_range(const Bucket& b, int64_t from, int64_t n, const Elements& all,
                            const OptimizerStep& step) const;
  void update_stored(const Site& site, const Bucket& b, int64_t from, int64_t n, const Elements& stored,
                     const OptimizerStep& step) const;
  void update_range(const Site& site, const Bucket& b, int64_t from, int64_t n, const Elements& all,
                    const OptimizerStep& step) const;
  void round_weights(Stream& on, const Bucket& b, int64_t from, int64_t n, const Tensor& to,
                     const Tensor& wide, int64_t step) const;

  StoreContext c_;
  const ParameterLayout& layout_;
  const StepRules& rules_;
  const OptimizerStates& states_;
  const GradientReducer& gradients_;
  const OffloadedWeights& offloaded_;
  StateWindows& windows_;
  HostUpdates& host_;
  WeightAverage& average_;
  const UntouchedExperts& untouched_;
  uint64_t seed_;
  int64_t window_;
  std::vector<Together> together_;
  std::vector<Tensor> wide_;  // widened states of one window
};

}  // namespace ltrain
