// The update of all buckets: each optimizer updates the elements with states on this rank.
#pragma once
#include <memory>
#include <vector>

#include "parallel/optim/tensor_sums.h"
#include "parallel/zero/element_updates.h"

namespace ltrain {

class BucketUpdates final : public UpdateContext {
 public:
  /// Allocates memory of optimizers beside the states of elements. `seed`: seed of random signs.
  BucketUpdates(const StoreContext& context, const ParameterLayout& layout, const StepRules& rules,
                Weights& weights, const OptimizerStates& states, GradientReducer& gradients,
                CompressedAllReduce& compressed, ElementUpdates& elements, WeightAverage& average,
                uint64_t seed);

  void update(const OptimizerStep& step);
  /// TensorUpdate::add_own_squares of the bucket's optimizer.
  void add_own_squares(const Bucket& b, const Tensor& total);
  void begin_estimate();
  void end_estimate(const OptimizerStep& step, double labels, double loss_scale);
  void clear();
  std::vector<WholeState> states() const;

  // ---- UpdateContext ----
  Stream& compute() override { return c_.compute; }
  Memory& memory() override { return c_.memory; }
  const Groups& groups() override { return c_.groups; }
  const OptimizerSettings& settings() override { return rules_.optimizer; }
  DType master_type() override { return c_.precision.master; }
  uint64_t seed() override { return seed_; }
  const OptimizerStep& step() override { return step_; }
  int64_t step_number() override { return rules_.step; }
  TensorSums& sums() override { return sums_; }
  std::vector<int> buckets(UpdateRule r) override;
  void each_part(int bucket, Extent extent, const EachPart& f) override;
  const Group& group(int bucket) override { return layout_.shard_group(layout_.bucket(bucket)); }
  std::vector<BucketMember> members(int bucket) override;
  Elements stored(int bucket) override;
  Tensor scratch(int bucket) override { return states_.scratch(layout_.bucket(bucket)); }
  void require_gradients(int bucket, Tensor t, std::string_view when) override;
  Tensor weights(int bucket) override { return weights_.updated(layout_.bucket(bucket)); }
  void publish_weights(UpdateRule r, std::string_view when) override;
  Tensor gather_grads(int bucket) override { return gradients_.gather(layout_.bucket(bucket)); }
  void sum_grads(int bucket, Tensor whole) override { gradients_.scatter(layout_.bucket(bucket), whole); }
  void average_moments(int bucket, Tensor values, double factor, Tensor where) override;

 private:
  StoreContext c_;
  const ParameterLayout& layout_;
  const StepRules& rules_;
  Weights& weights_;
  const OptimizerStates& states_;
  GradientReducer& gradients_;
  CompressedAllReduce& compressed_;
  ElementUpdates& elements_;
  WeightAverage& average_;
  uint64_t seed_;
  OptimizerStep step_;
  TensorSums sums_;
  std::unique_ptr<TensorUpdate> updates_[kUpdateRules];  // one for each rule that parameters use
  std::vector<AsyncHandle> averaged_;                    // moments in flight, by bucket
};

}  // namespace ltrain
