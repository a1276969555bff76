// The outer optimizer of DiLoCo (arXiv:2311.08105): SGD with momentum on the change of the weights since the
// last synchronization, averaged over sites. Sharded as the states of the inner optimizer are.
//
// In Streaming DiLoCo (arXiv:2501.18512) the layers are dealt to fragments in turn. A fragment's difference
// of weights is summed on the stream of the sites while training goes on; its outer update follows
// DilocoSettings::delay steps later.
#pragma once
#include <functional>
#include <vector>

#include "parallel/zero/compressed_all_reduce.h"
#include "parallel/zero/optimizer_states.h"

namespace ltrain {

class OuterOptimizer {
 public:
  OuterOptimizer(const StoreContext& context, const ParameterLayout& layout, Weights& weights,
                 const OptimizerStates& states, const DilocoSettings& settings);

  /// Elements that sums over sites code together; 1 if they are not coded.
  int64_t block(const Bucket& b) const;
  /// Allocates a bucket; after all buckets, allocate_codes() allocates codes for the largest one.
  void allocate(const Bucket& b);
  void allocate_codes();
  /// Momentum of this rank's elements of the bucket; undefined if the bucket is frozen or DiLoCo is off.
  const Tensor& momentum(const Bucket& b) const { return at(b).momentum; }
  /// Weights that sites share, as of the last outer update; undefined unless sites have weights of their own
  /// at every step.
  const Tensor& shared(const Bucket& b) const { return settings_.streams() ? at(b).anchor : none_; }
  /// Difference of weights that is on its way, summed over sites after wait(); undefined without a delay.
  const Tensor& change(const Bucket& b) const { return at(b).change; }
  /// Begins a round with the current weights.
  void start();
  /// Begins after step `step` with loaded states; `in_flight`: differences that were on their way are loaded.
  void resume(int64_t step, bool in_flight);
  /// Collective over sites, after the inner update of step `step`: takes and applies the differences that are
  /// due.
  void synchronize(int64_t step);
  /// Makes the compute stream wait for sums on their way.
  void wait() const;
  /// Calls f with all states, for set-up.
  void each_tensor(const std::function<void(const Tensor&)>& f) const;

 private:
  struct State {
    Tensor anchor;  // weights at the last synchronization
    Tensor momentum;
    Tensor change;     // with a delay: difference of weights on its way
    AsyncHandle sent;  // sum of `change`
  };
  State& at(const Bucket& b) { return buckets_[static_cast<size_t>(b.index)]; }
  const State& at(const Bucket& b) const { return buckets_[static_cast<size_t>(b.index)]; }
  /// Fragment of a bucket. Copies of one tensor on two pipeline stages are in the same one.
  int fragment(const Bucket& b) const;
  void each_of(int fragment, const std::function<void(const Bucket&)>& f) const;
  /// Sets `change` to the difference of weights, and starts its sum over sites.
  AsyncHandle send(const Bucket& b, const Tensor& change);
  AsyncHandle start_coded_sum(const Tensor& change);
  /// Moves weights by the sum `change`, which is spent.
  void update(const Bucket& b, const Tensor& change);
  void synchronize_now(const Bucket& b);

  StoreContext c_;
  const ParameterLayout& layout_;
  Weights& weights_;
  const OptimizerStates& states_;
  DilocoSettings settings_;
  std::vector<State> buckets_;  // indexed by bucket
  // With 8-bit sums, for the bucket that is summed: codes sent and received, and rounding errors, which are
  // dropped.
  Tensor sent_, received_, error_;
  Tensor none_;
  int in_flight_ = -1;  // fragment with a difference on its way
};

}  // namespace ltrain
