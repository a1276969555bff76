// The outer optimizer of DiLoCo (arXiv:2311.08105): SGD with momentum on the change of the weights since the
// last synchronization, averaged over sites. Sharded as the states of the inner optimizer are.
#pragma once
#include <functional>
#include <vector>

#include "parallel/zero/optimizer_states.h"

namespace ltrain {

class OuterOptimizer {
 public:
  OuterOptimizer(const StoreContext& context, const ParameterLayout& layout, Weights& weights,
                 const OptimizerStates& states, const DilocoSettings& settings);

  void allocate(const Bucket& b);
  /// Momentum of this rank's elements of the bucket; undefined if the bucket is frozen or DiLoCo is off.
  const Tensor& momentum(const Bucket& b) const { return at(b).momentum; }
  /// Begins a round with the current weights.
  void start();
  /// Collective over sites. Ends a round and begins the next, after the inner update.
  void synchronize();
  /// Calls f with all states, for set-up.
  void each_tensor(const std::function<void(const Tensor&)>& f) const;

 private:
  struct State {
    Tensor anchor;  // weights at the last synchronization
    Tensor momentum;
  };
  const State& at(const Bucket& b) const { return buckets_[static_cast<size_t>(b.index)]; }
  void update(const Bucket& b);

  StoreContext c_;
  const ParameterLayout& layout_;
  Weights& weights_;
  const OptimizerStates& states_;
  DilocoSettings settings_;
  std::vector<State> buckets_;  // indexed by bucket
};

}  // namespace ltrain
