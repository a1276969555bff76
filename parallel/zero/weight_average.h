// The exponential moving average of the weights (EMA), which evaluations see in their place.
#pragma once
#include <vector>

#include "parallel/zero/optimizer_states.h"

namespace ltrain {

class WeightAverage {
 public:
  /// `decay` 0: there is none.
  WeightAverage(const StoreContext& context, const ParameterLayout& layout, Weights& weights,
                const OptimizerStates& states, const OffloadAccess& access, double decay);

  bool on() const { return decay_ > 0; }
  void allocate(const Bucket& b);
  /// Of what this rank has states of in the bucket; undefined where there is none.
  const Tensor& of(const Bucket& b) const { return averages_[static_cast<size_t>(b.index)]; }

  /// Begins with the weights as they are.
  void start();
  /// Update `step`, counted from 1, has made elements of the bucket from `from` on `master`.
  void follow(const Bucket& b, int64_t from, const Tensor& master, int64_t step);
  /// Puts it in the place of the weights, or them back, bit for bit.
  void exchange(bool shown);

 private:
  void swap_in_parts(const Tensor& a, const Tensor& b);

  StoreContext c_;
  const ParameterLayout& layout_;
  Weights& weights_;
  const OptimizerStates& states_;
  const OffloadAccess& access_;
  double decay_;
  std::vector<Tensor> averages_;  // by bucket
};

}  // namespace ltrain
