// Exponential moving average of the weights (EMA), which evaluation swaps in.
#pragma once
#include <vector>

#include "parallel/zero/optimizer_states.h"

namespace ltrain {

class WeightAverage {
 public:
  /// `decay` 0: off.
  WeightAverage(const StoreContext& context, const ParameterLayout& layout, Weights& weights,
                const OptimizerStates& states, const OffloadAccess& access, double decay);

  bool on() const { return decay_ > 0; }
  void allocate(const Bucket& b);
  /// EMA of this rank's elements of the bucket; undefined if off.
  const Tensor& of(const Bucket& b) const { return averages_[static_cast<size_t>(b.index)]; }

  /// Initializes the EMA with the current weights.
  void start();
  /// Moves the EMA of the bucket's elements from `from` on towards `master`, after update `step`, numbered
  /// from 1.
  void follow(const Bucket& b, int64_t from, const Tensor& master, int64_t step);
  /// Swaps the EMA in for the weights, or the weights back, bit for bit.
  void exchange(bool shown) {
    if (on()) exchange(shown, [this](const Bucket& b) { return of(b); });
  }
  /// exchange() with other weights, sharded as the states are; undefined: the bucket stays.
  void exchange(bool shown, const std::function<Tensor(const Bucket&)>& other);

 private:
  void swap_in_parts(const Tensor& a, const Tensor& b);

  StoreContext c_;
  const ParameterLayout& layout_;
  Weights& weights_;
  const OptimizerStates& states_;
  const OffloadAccess& access_;
  double decay_;
  std::vector<Tensor> averages_;  // indexed by bucket
};

}  // namespace ltrain
