// Values that the layouts of a search share, computed once: costs of layers, actions of pipelines. They give
// a lower bound for the plan of a layout, and the figures of its plan. All functions are thread-safe.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "planner/search/search_space.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/plan/plan_types.h"

namespace ltrain {

/// Lower bounds for the plan of a layout.
struct Bound {
  double step_seconds = 0;
  double bytes = 0;  ///< bytes of the largest rank
};

/// Figures of a layout's plan, from the same passes of its ranks.
struct Trial {
  double step_seconds = 0;
  int64_t bytes = 0;  ///< bytes of the largest rank
  bool fits = false;
  bool finished = false;  ///< false: stopped early because it does not fit or is too slow
};

/// Values by key. Each is computed once, by the first thread that requests it.
template <class Key, class Value>
class Shared {
 public:
  template <class Make>
  const Value& get(const Key& key, const Make& make) {
    Entry* entry = nullptr;
    {
      const std::scoped_lock lock(mutex_);
      entry = &entries_[key];
    }
    std::call_once(entry->once, [&] { entry->value = make(); });
    return entry->value;
  }
  size_t size() const {
    const std::scoped_lock lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    std::once_flag once;
    Value value;
  };
  mutable std::mutex mutex_;
  std::map<Key, Entry> entries_;
};

/// A trial in progress. Its ranks are independent of each other.
class RankTrials {
 public:
  /// `recipe` is resolved. `profile` must outlive this object. The trial stops early if a rank leaves less
  /// than `keep_free` bytes, or if its step takes longer than `most_seconds`. `least_makespan`: lower bound
  /// on the time of the pipeline's actions. If it exceeds `most_seconds`, the trial stops without a pass and
  /// counts as fitting.
  RankTrials(Recipe recipe, const MachineProfile& profile, PipelinePlan pipeline, double least_makespan,
             int64_t keep_free, double most_seconds);
  size_t size() const { return least_makespan_ > most_seconds_ ? 0 : which_.size(); }
  /// Runs the pass of rank i; does nothing if an earlier rank stopped the trial. Called once for each rank by
  /// any thread. The results do not depend on the order.
  void run(size_t i);
  /// Result, once all have run.
  Trial result();

 private:
  Recipe recipe_;
  const MachineProfile& profile_;
  PipelinePlan pipeline_;
  double least_makespan_;
  int64_t keep_free_;
  double most_seconds_;
  Plan job_;  ///< without ranks
  std::vector<int> which_;
  std::vector<RankPlan> ranks_;
  std::atomic<size_t> ended_by_;  ///< first rank that stopped the trial
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
  /// Runs the passes of all ranks one after the other.
  Trial trial(const Layout& layout, double most_seconds);

  using PartKey =
      std::tuple<int64_t, bool, int64_t, ContextComm, int64_t, int64_t, int64_t, RecomputeGranularity,
                 Precision, bool, bool, TensorModeChoice, bool, bool, double>;
  using ActionsKey = std::tuple<PartKey, std::string, int64_t, int64_t, int64_t>;
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
  };
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
  Shared<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, std::string>, size_t> shard_ranks_;
  Shared<PartKey, pipeline::LayerCosts> costs_;
  /// Tensor ranks, ZeRO.
  using TrafficKey = std::tuple<int64_t, TensorModeChoice, int64_t, bool, Precision>;
  Shared<TrafficKey, Traffic> traffic_;
  Shared<std::tuple<TrafficKey, int64_t, int64_t, int64_t, int64_t, int64_t, std::string, bool>,
         TrafficSeconds>
      traffic_seconds_;
  Shared<std::tuple<PartKey, int64_t, int64_t, bool>, pipeline::StageCosts> staged_;
  struct Actions {
    double seconds = 0;
    std::vector<double> layers, kept;  ///< index: pipeline rank
    std::vector<double> kept_later;    ///< maximum after all stages of the rank have gradients
    double first_layers = 0, first_forward = 0, first_last = 0;  ///< arguments of first_wait
  };
  Shared<ActionsKey, Actions> actions_;
  Shared<std::pair<ActionsKey, std::string>, PipelinePlan>
      pipelines_;  ///< pipelines of trials, also keyed by the order of ranks
  std::atomic<int64_t> composed_ = 0, whole_ = 0;
};

/// Returns whether the plan leaves `keep_free` bytes of every memory.
bool fits_with(const Plan& plan, int64_t keep_free);

}  // namespace ltrain
