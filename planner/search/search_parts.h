// What layouts of a search have in common, computed once for all of them: costs of layers, actions of
// pipelines. From these a bound that no plan of a layout goes below, and the figures that its plan has.
// All functions may be called by several threads at once.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "planner/search/search_space.h"
#include "runtime/plan/plan.h"

namespace ltrain {

/// Never more than what the plan of the layout has.
struct Bound {
  double step_seconds = 0;
  double bytes = 0;  ///< of the rank that takes most
};

/// Of a layout's plan, from the same passes of its ranks.
struct Trial {
  double step_seconds = 0;
  int64_t bytes = 0;  ///< of the rank that takes most
  bool fits = false;
  bool finished = false;  ///< else it was ended when it did not fit, or was slower than asked for
};

/// Values by key; each is made once, by the first thread that asks.
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

/// A trial under way. Its ranks are independent of each other.
class RankTrials {
 public:
  /// Of a resolved recipe; the profile outlives this. It ends when a rank does not leave `keep_free` bytes,
  /// or its step takes longer than `most_seconds`. `least_makespan`: that the pipeline's actions take at
  /// least; where that is longer it ends without a rank, and counts as one that fits.
  RankTrials(Recipe recipe, const MachineProfile& profile, PipelinePlan pipeline, double least_makespan,
             int64_t keep_free, double most_seconds);
  size_t size() const { return least_makespan_ > most_seconds_ ? 0 : which_.size(); }
  /// The pass of one of them; nothing where one before it has ended the trial. Called once for each, by any
  /// thread; the results of all do not depend on the order.
  void run(size_t i);
  /// When all have run.
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
  std::atomic<size_t> ended_by_;  ///< the first of those that ended it
};

class SearchParts {
 public:
  /// `recipe` is not resolved; all three outlive this.
  SearchParts(const Recipe& recipe, const MachineProfile& profile, const SearchLimits& limits)
      : given_(recipe), profile_(profile), limits_(limits) {}

  /// Of a layout that the rules allow: the time of its matmuls, its other ops and, with a pipeline, the
  /// collectives of tensor, context and expert ranks, or of what ZeRO 2 and 3 move, where that takes longer;
  /// the bytes of parameters, optimizer state, and activations or gradients.
  Bound bound(const Layout& layout);
  /// Whether `actions` says more than `bound`.
  bool has_actions(const Layout& layout) const {
    return layout.pipeline > 1 && composes(layout) && !hides_collectives(layout) &&
           !given_.parallel.schedule_file;
  }
  /// Seconds that the actions of no such pipeline take less than, found without them.
  double least_actions(const Layout& layout);
  /// Of a pipeline's actions, which its plan's step is never shorter than; the bytes of parameters, optimizer
  /// state and what micro-batches keep, of the rank where they are most.
  Bound actions(const Layout& layout);
  /// Null where the layout fits with nothing that may be computed again.
  std::unique_ptr<RankTrials> begin_trial(const Layout& layout, double most_seconds);
  /// All of its ranks, one after the other.
  Trial trial(const Layout& layout, double most_seconds);

  using PartKey =
      std::tuple<int64_t, bool, int64_t, ContextComm, int64_t, int64_t, int64_t, RecomputeGranularity,
                 Precision, bool, bool, TensorModeChoice, bool, bool, double>;
  using ActionsKey = std::tuple<PartKey, std::string, int64_t, int64_t, int64_t>;
  /// Layouts with the same key have the same costs of layers; those with the second the same actions too.
  static PartKey key_of(const Layout& layout);
  static ActionsKey actions_key_of(const Layout& layout);

  size_t parts() const { return parts_.size(); }
  int64_t composed() const {
    return composed_;
  }                                         ///< trials with shared costs of layers, or without a pipeline
  int64_t whole() const { return whole_; }  ///< those that priced their layers alone

 private:
  /// Of a model that lies on one pipeline rank, not sharded.
  struct Part {
    double micro_seconds = 0;  ///< forward and backward of a micro-batch
    double params = 0, grads = 0, states = 0;
    double activations = 0;  ///< that its layers keep of a micro-batch, without what passes
    /// Of a layer, where all are alike; else 0.
    double layer_params = 0, layer_grads = 0, layer_states = 0;
    double external = 0;  ///< of a card's, beside the arena, of a rank without data-parallel ones
  };
  /// Payload of the collectives of ZeRO for a layer, in bytes: of a micro-batch, and of what is gathered and
  /// reduced once a step.
  struct Traffic {
    double gathered = 0, reduced = 0, gathered_once = 0, reduced_once = 0;
  };
  /// Seconds that it takes, at least.
  struct TrafficSeconds {
    double micro = 0, once = 0;
    double stolen = 0;  ///< of a micro-batch's compute, meanwhile
    /// Of compute for a layer, while gradients are reduced: of each micro-batch, and of the last one more.
    double reducing = 0, reducing_last = 0;
  };
  /// Whether shards inside a node bring expert ranks nearer to each other than the costs of layers say, which
  /// are of a model that is not sharded.
  static bool moves_experts(const Layout& layout);
  /// Whether compute alone bounds its time: there, and where micro-batches may run by turns, which can hide
  /// the collectives of tensor, context and expert ranks and of ZeRO. In a pipeline pairs of actions can,
  /// whose costs only the passes of its ranks know.
  static bool hides_collectives(const Layout& layout);
  bool composes(const Layout& layout) const;
  Recipe recipe_of(const Layout& layout) const;
  Part make_part(const Layout& layout) const;
  Part part(const Layout& layout);
  Traffic make_traffic(const Layout& layout) const;
  /// Of the rank with most layers; 0 where it is not known.
  TrafficSeconds traffic_seconds(const Layout& layout);
  /// That the first stage waits at least for what is gathered once a step, when it has `layers` and its first
  /// forward takes `forward` seconds, of which its last layer `last`. All that follows is as much later.
  double first_wait(const Layout& layout, double layers, double forward, double last);
  double shards(const Layout& layout, int64_t from_stage);
  double whole_gradients(const Part& part, const Layout& layout);
  const pipeline::LayerCosts& costs(const Layout& layout);
  PipelinePlan pipeline(const Layout& layout, const Recipe& recipe);
  /// What its actions take at least, with what reducing gradients takes from them.
  double least_makespan(const Layout& layout, const PipelinePlan& plan);

  const Recipe& given_;
  const MachineProfile& profile_;
  const SearchLimits& limits_;
  Shared<PartKey, Part> parts_;
  Shared<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, std::string>, size_t> shard_ranks_;
  Shared<PartKey, pipeline::LayerCosts> costs_;
  using TrafficKey = std::tuple<int64_t, TensorModeChoice, int64_t, bool, Precision>;  ///< tensor ranks, ZeRO
  Shared<TrafficKey, Traffic> traffic_;
  Shared<std::tuple<TrafficKey, int64_t, int64_t, int64_t, int64_t, int64_t, std::string, bool>,
         TrafficSeconds>
      traffic_seconds_;
  Shared<std::tuple<PartKey, int64_t, int64_t, bool>, pipeline::StageCosts> staged_;
  struct Actions {
    double seconds = 0;
    std::vector<double> layers, kept;  ///< by pipeline rank
    std::vector<double> kept_later;    ///< the most after all its stages have gradients
    double first_layers = 0, first_forward = 0, first_last = 0;  ///< as first_wait has them
  };
  Shared<ActionsKey, Actions> actions_;
  Shared<std::pair<ActionsKey, std::string>, PipelinePlan>
      pipelines_;  ///< of trials; the order of ranks, too
  std::atomic<int64_t> composed_ = 0, whole_ = 0;
};

/// Whether the plan leaves `keep_free` bytes of every memory.
bool fits_with(const Plan& plan, int64_t keep_free);

}  // namespace ltrain
