// Values that the layouts of a search share, computed once: costs of layers, actions of pipelines. They give
// a lower bound for the plan of a layout, and the figures of its plan. All functions are thread-safe.
#pragma once
#include <atomic>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "planner/search/layout.h"
#include "planner/search/rank_trials.h"
#include "planner/search/shared.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/plan_types.h"

namespace ltrain {

/// Lower bounds for the plan of a layout.
struct Bound {
  double step_seconds = 0;
  double bytes = 0;  ///< bytes of the largest rank
};

class SearchParts {
 public:
  /// `recipe` is not resolved. All three must outlive this object.
  SearchParts(const Recipe& recipe, const MachineProfile& profile, const SearchLimits& limits)
      : given_(recipe), profile_(profile), limits_(limits) {}

  /// Bound of an allowed layout. Time: its matmuls, other ops and, with a pipeline, the collectives of
  /// tensor, context and expert ranks; or the traffic of ZeRO 2 and 3 if that takes longer. Bytes:
  /// parameters, optimizer state, and activations or gradients.
  Bound bound(const Layout& layout);
  /// Returns whether `actions` gives a better bound than `bound`.
  bool has_actions(const Layout& layout) const {
    return layout.pipeline > 1 && composes(layout) && !hides_collectives(layout) &&
           !given_.parallel.schedule_file;
  }
  /// Lower bound on the time of the pipeline's actions, computed without them.
  double least_actions(const Layout& layout);
  /// Bound from a pipeline's actions, which no step of the plan is faster than. Bytes: parameters, optimizer
  /// state and saved activations of the largest rank.
  Bound actions(const Layout& layout);
  /// Returns null if no choice of recompute: auto fits.
  std::unique_ptr<RankTrials> begin_trial(const Layout& layout, double most_seconds);
  /// Layers of each pipeline stage that ZeRO-3 may leave to ZeRO-2 in `free` bytes of a rank.
  int64_t zero_layers_in(const Layout& layout, double free);
  /// Runs the passes of all ranks one after the other.
  Trial trial(const Layout& layout, double most_seconds);

  struct PartKey {
    int64_t tensor;
    bool sequence_parallel;
    int64_t context;
    ContextComm context_comm;
    int64_t expert, expert_tensor, micro_batch;
    RecomputeGranularity recompute;
    Precision precision;
    bool hides_collectives;
    bool in_chunks;  ///< matmuls run in chunks, to overlap with their collectives
    TensorModeChoice tensor_mode;
    bool offload_optimizer, offload_activations;
    double row_budget;
    auto operator<=>(const PartKey&) const = default;
  };
  struct ActionsKey {
    PartKey part;
    std::string schedule;
    int64_t pipeline, virtual_pipeline, micro_batches;
    auto operator<=>(const ActionsKey&) const = default;
  };
  /// Layouts with the same key have the same layer costs; with the same second key also the same actions.
  static PartKey key_of(const Layout& layout);
  static ActionsKey actions_key_of(const Layout& layout);

  size_t parts() const { return parts_.size(); }
  int64_t composed() const { return composed_; }  ///< trials with shared layer costs, or without a pipeline
  int64_t whole() const { return whole_; }        ///< trials with their own layer costs

 private:
  /// Costs of the unsharded model on one pipeline rank.
  struct Part {
    double micro_seconds = 0;  ///< forward and backward of a micro-batch
    double params = 0, grads = 0, states = 0;
    double activations = 0;  ///< saved activations of its layers per micro-batch, without temporaries
    /// Bytes of a layer if all layers are equal; else 0.
    double layer_params = 0, layer_grads = 0, layer_states = 0;
    double external = 0;  ///< device memory outside the arena, of a rank without data parallelism
  };
  /// Payload of ZeRO's collectives for a layer, in bytes: per micro-batch, and gathered and reduced once per
  /// step.
  struct Traffic {
    double gathered = 0, reduced = 0, gathered_once = 0, reduced_once = 0;
  };
  /// Lower bounds on the time of that traffic, in seconds.
  struct TrafficSeconds {
    double micro = 0, once = 0;
    double stolen = 0;  ///< compute time of a micro-batch taken by concurrent collectives
    /// Compute time per layer taken while gradients are reduced: for each micro-batch, and additionally for
    /// the last one.
    double reducing = 0, reducing_last = 0;
    double reduced_once = 0;  ///< reduction of gradients once per step, after the last micro-batch
  };
  struct ShardKey {
    int64_t tensor, context, pipeline, data, shard_group;
    std::string order;
    auto operator<=>(const ShardKey&) const = default;
  };
  static ShardKey shard_key_of(const Layout& layout);
  /// Returns whether shard groups inside a node bring expert ranks closer to each other than assumed by the
  /// layer costs, which are those of the unsharded model.
  static bool moves_experts(const Layout& layout);
  /// Returns whether only compute bounds the time: with moves_experts, and if micro-batches may overlap,
  /// which can hide the collectives of tensor, context and expert ranks and of ZeRO. In a pipeline, pairs of
  /// actions overlap, and only the passes of the ranks give their costs.
  static bool hides_collectives(const Layout& layout);
  bool composes(const Layout& layout) const;
  Recipe recipe_of(const Layout& layout) const;
  Part make_part(const Layout& layout) const;
  Part part(const Layout& layout);
  Traffic make_traffic(const Layout& layout) const;
  /// Traffic time of the rank with most layers; 0: unknown.
  TrafficSeconds traffic_seconds(const Layout& layout);
  /// Lower bound on the wait of the first stage for weights gathered once per step. The stage has `layers`
  /// layers. Its first forward takes `forward` seconds, of which its last layer takes `last`. Everything
  /// after it is delayed by the wait.
  double first_wait(const Layout& layout, double layers, double forward, double last);
  double shards(const Layout& layout, int64_t from_stage);
  double whole_gradients(const Part& part, const Layout& layout);
  const pipeline::LayerCosts& costs(const Layout& layout);
  PipelinePlan pipeline(const Layout& layout, const Recipe& recipe);
  /// Lower bound on the time of the actions, including compute time taken by the gradient reduction.
  double least_makespan(const Layout& layout, const PipelinePlan& plan);

  const Recipe& given_;
  const MachineProfile& profile_;
  const SearchLimits& limits_;
  Shared<PartKey, Part> parts_;
  Shared<ShardKey, size_t> shard_ranks_;
  Shared<PartKey, pipeline::LayerCosts> costs_;
  struct TrafficKey {
    int64_t tensor;
    TensorModeChoice tensor_mode;
    int64_t zero_stage;
    bool reshard;
    Precision precision;
    auto operator<=>(const TrafficKey&) const = default;
  };
  Shared<TrafficKey, Traffic> traffic_;
  struct TrafficSecondsKey {
    TrafficKey traffic;
    ShardKey shard;
    int64_t virtual_pipeline, zero_layers;
    bool hides_collectives;
    auto operator<=>(const TrafficSecondsKey&) const = default;
  };
  Shared<TrafficSecondsKey, TrafficSeconds> traffic_seconds_;
  struct StagesKey {
    PartKey part;
    int64_t pipeline, virtual_pipeline;
    bool in_v;
    auto operator<=>(const StagesKey&) const = default;
  };
  Shared<StagesKey, pipeline::StageCosts> staged_;
  struct Actions {
    double seconds = 0;
    std::vector<double> layers, kept;  ///< index: pipeline rank
    std::vector<double> kept_later;    ///< maximum after all stages of the rank have gradients
    double first_layers = 0, first_forward = 0, first_last = 0;  ///< arguments of first_wait
    /// Start of the first action that completes gradients, before which none is reduced. Index: pipeline
    /// rank.
    std::vector<double> reduces_from = {};
  };
  Shared<ActionsKey, Actions> actions_;
  struct PipelineKey {
    ActionsKey actions;
    std::string order;  ///< order of ranks
    auto operator<=>(const PipelineKey&) const = default;
  };
  Shared<PipelineKey, PipelinePlan> pipelines_;  ///< pipelines of trials
  std::atomic<int64_t> composed_ = 0, whole_ = 0;
};

}  // namespace ltrain
