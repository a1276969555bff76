// A plan: memory, communication and time of one step of a recipe, run on the meta device.
#pragma once
#include <fmt/format.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "parallel/pipeline/choose_schedule.h"
#include "parallel/pipeline/simulate.h"
#include "runtime/machines/machine_profile.h"
#include "runtime/program/recipe_program.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// All calls of one collective on one axis in a step.
struct CollectivePlan {
  std::string axis, op;
  std::string group;  ///< comm_axis of the group: "dp", "tp", "ep", ...
  int64_t calls = 0;
  int64_t bytes = 0;          ///< payload
  int64_t wire_bytes = 0;     ///< sent by this rank
  int64_t network_bytes = 0;  ///< part of wire_bytes sent to other hosts
  double seconds = 0;
};

struct OpPlan {
  std::string name;
  int64_t calls = 0;
  double flops = 0, bytes = 0, seconds = 0;
};

/// Memory of a rank outside its arena, with the source of the figure.
struct ExternalMemory {
  std::string name;
  int64_t bytes = 0;
  std::string source;
  DeviceKind where = DeviceKind::cpu;  ///< memory in which it is
};

struct RankPlan {
  int rank = 0;
  MemoryUse arena;  ///< peak over the train and eval steps
  /// MoE models: arena with even routing, and bytes sent between experts with the worst routing. 0: the same.
  int64_t even_arena_bytes = 0, worst_expert_bytes = 0;
  double row_budget = 0;      ///< model.moe.row_budget, if it limits the rows of a rank
  int64_t staging_bytes = 0;  ///< host memory for copies to the device; 0 on the CPU
  std::vector<ExternalMemory> outside;
  OffloadedBytes offloaded;                           ///< in files or host memory
  int64_t total_bytes = 0;                            ///< total of device memory
  int64_t host_bytes = 0;                             ///< total of host memory; on the CPU the same
  int64_t train_wire_bytes = 0, eval_wire_bytes = 0;  ///< a train step; an eval pass over all its batches
  std::vector<CollectivePlan> collectives;            ///< collectives of a train step
  std::set<FigureUse> figures;                        ///< figures of a card's profile used for times
  std::vector<OpPlan> ops;                            ///< ops of a train step, longest first
  /// Model FLOPs of a train step on this rank (OpCost::model_flops).
  double model_flops = 0;
  double step_seconds = 0;
  /// Time that compute waits for communication, by axis as in metrics ("dp", "tp", ...), longest first.
  std::vector<std::pair<std::string, double>> exposed;
  double exposed_comm_seconds() const;  ///< total of all axes
  double exposed_offload_seconds = 0;   ///< time that compute waits for offload
  double eval_seconds = 0;              ///< one evaluation
  /// Bytes and seconds of steps of the other kind (StepKinds); 0: there are none.
  int64_t other_wire_bytes = 0;
  double other_seconds = 0;
  int other_passes = 0;       ///< passes of such a step over its micro-batches
  int64_t placement_ops = 0;  ///< ops and collectives with checked placements
  /// With a pipeline: times of each action in the rank's pass, one after the other without bubbles. The first
  /// action of a pair has the time of both.
  std::vector<ActionTime> actions;
};

/// Limit of a memory: of a card or of this host.
struct MemoryLimit {
  DeviceKind of = DeviceKind::cuda;  ///< cuda: a card's memory; cpu: this host's
  int ranks = 1;                     ///< ranks that share it
  int64_t rank_bytes = 0;            ///< bytes of the largest rank
  int64_t available_bytes = 0;
  int64_t needed_bytes() const { return ranks * rank_bytes; }
  bool fits() const { return needed_bytes() <= available_bytes; }
};

/// Assumed cards per node, if neither the recipe nor the environment assigns ranks to nodes.
struct AssumedNode {
  int cards = 0;     ///< 0: no assumption
  std::string card;  ///< "H100"
  std::string source = "assumed";
  /// "a node: 8 H100, assumed"
  std::string text() const { return fmt::format("a node: {} {}, {}", cards, card, source); }
};
/// Assumed node for `world` ranks on cards of this profile: the machine in which such cards are sold. No
/// assumption if the ranks fit on one node, or if this machine with its `gpus` GPUs has them all.
AssumedNode assumed_node(const MachineProfile& profile, int world, int gpus);

struct Plan {
  std::string recipe_name;
  DeviceKind device = DeviceKind::cpu;
  int64_t device_bytes = 0;  ///< memory of a card; 0 on the CPU
  int world = 1;
  int threads_per_rank = 1;
  int ranks_on_host = 1;  ///< ranks that `run` would start here
  AssumedNode node;
  int64_t parameters = 0;
  /// Parameters in 2:4 sparse matrices, and the step from which they are sparse.
  int64_t sparse_parameters = 0, sparse_from = 0;
  int64_t tokens_per_step = 0, accumulation = 1;
  int64_t train_steps = 0;
  StepKinds kinds;
  int64_t evaluations = 0;  ///< passes over the held-out data until train_steps
  std::string profile;      ///< source of the profile
  bool profile_measured = false;
  bool profile_built_in = false;  ///< priced by a card's figures, not by samples of this machine
  double network_bytes_per_second =
      /// Network rate of a host with ranks_on_host ranks, which prices bytes between hosts.
      0;
  bool network_given = false;  ///< network rate from the profile; else it is assumed
  std::string network_source;  ///< "by the profile", "assumed: ..."
  double peak_flops = 0;       ///< peak of one rank for MFU: the profile's fastest matmul of the dtype
  std::string attention;       ///< attention kernels of a GPU; empty: on the CPU, or unknown
  std::string experts;         ///< kernels of expert matmuls; empty: a dense model
  std::string overlap;         ///< overlap that hides the collectives of layers, as text; empty: none
  std::string recompute;       ///< choice of granularity: auto, as text; else empty
  /// MachineProfile::expert_skew; all values below include it, except model FLOPs.
  double expert_skew = 1;
  /// Weights, gradients and optimizer state on cards, per parameter; 0 if the plan fits.
  double state_bytes = 0;
  /// Step time of the slowest rank with even routing, if expert_skew is above 1.
  double even_step_seconds = 0;
  /// Schedule of a pipeline, also if chosen by `auto`; path of a schedule file; else empty.
  std::string schedule;
  int pipeline_chunks = 1;      ///< stages per pipeline rank
  double bubble_share = 0;      ///< Timing::bubble_share of a pipeline
  double action_seconds = 0;    ///< Timing::makespan of a pipeline
  int64_t placement_ops = 0;    ///< ops and collectives with checked placements
  std::vector<RankPlan> ranks;  ///< the distinct ones: the first of each pipeline stage, and the last
  int stages = 0;               ///< number of stages in `ranks`; 0: other ranks were requested
  int64_t host_bytes = 0;       ///< memory of this host, or the cgroup limit if lower
  /// Ranks would run on hosts like this one, so their memory is compared with this host's.
  bool for_this_machine = true;
  std::vector<std::string> smaller;  ///< settings that would need less memory
  std::vector<std::string> enough;   ///< enough_settings(), if requested

  double step_seconds() const;  ///< time of the slowest rank
  /// Model FLOPs of all ranks, relative to their matmul peaks over a step. Pipeline stages differ, ranks of a
  /// stage do not.
  double mfu() const;
  /// Returns whether peak_flops is a card's figure or was measured. Otherwise MFU would be relative to a
  /// guess, and is not shown.
  bool peak_known() const { return profile_measured || profile_built_in; }
  double model_flops() const;     ///< total of all ranks in a step
  double total_seconds() const;   ///< all steps and evaluations of the slowest rank
  int64_t network_bytes() const;  ///< bytes that the first rank sends to other hosts in a step
  double tokens_per_second() const { return step_seconds() > 0 ? tokens_per_step / step_seconds() : 0; }
};

/// Choice of recompute.granularity: auto: the recompute policy with the shortest planned step whose ranks
/// stay within the budget. Throws Error if none does: usage if recompute.budget is set, else does_not_fit.
RecomputeOptions choose_recompute(const Recipe& resolved, const MachineProfile& profile,
                                  const PipelineLayout& layout);
/// For `schedule: auto`: bytes available for activations on each pipeline rank, in a card's memory or the
/// rank's share of this host's. Empty for other schedules.
std::vector<double> activation_limit(const Recipe& resolved, const MachineProfile& profile);
/// Stages and schedule of a pipeline. Without a pipeline both are empty, except for the choice of
/// recompute.granularity: auto.
struct PipelinePlan {
  PipelineLayout layout;
  pipeline::StageCosts costs;
  pipeline::Timing timing;
};
/// `costs`: null: layer_costs of the recipe (schedule_plan.h).
PipelinePlan plan_pipeline(const Recipe& resolved, const MachineProfile& profile,
                           const pipeline::LayerCosts* costs = nullptr);
PipelineLayout pipeline_layout(const Recipe& resolved, const MachineProfile& profile);
/// Plan of a job without its ranks and without counts of the model: devices, hosts, steps, network.
Plan job_of(const Recipe& resolved, const MachineProfile& profile);
/// The first rank of each pipeline stage, and the last rank.
std::vector<int> ranks_to_plan(const Recipe& resolved);
/// Throws Error (usage) for a skew that is impossible in the recipe's layout; with `any_layout`, in any
/// layout of its model.
void check_skew(const Recipe& recipe, double skew, bool any_layout = false);
/// Plans `ranks` (empty: first and last) with a step on meta. Throws Error for a placement error. With a skew
/// in the profile, each rank is the one with the most rows of its expert group, for which the others wait.
/// `layout`: null: from the recipe and the profile.
Plan make_plan(const Recipe& resolved, const MachineProfile& profile, std::vector<int> ranks = {},
               const PipelineLayout* layout = nullptr);
/// The layout with the costs of its stages and the times of its actions.
PipelinePlan priced_pipeline(const Recipe& resolved, const MachineProfile& profile,
                             const PipelineLayout& layout);
/// Plan of one rank, from which `run` sizes its arena. With a pipeline, step_seconds and other_seconds
/// exclude the actions until place_actions adds them. `totals`: also computes values that are only printed:
/// MoE routing, placements.
RankPlan plan_rank(const Recipe& resolved, const MachineProfile& profile, const PipelineLayout& layout,
                   int rank, int threads, bool totals = false);
/// Plan of one rank with only times and memory: step_seconds, actions, total_bytes, host_bytes. Later
/// micro-batches replay the actions of a stage's first ones if possible (ActionRepeats). Bytes equal those of
/// plan_rank, and seconds too except for rounding.
RankPlan compose_rank(const Recipe& resolved, const MachineProfile& profile, const PipelineLayout& layout,
                      int rank, int threads);
/// Adds the actions of a pipeline to the step times of `ranks`; does nothing without a pipeline. The time of
/// an action is that of its stage's costs, or of the pass of a rank of its stage if that is longer. The time
/// of a pair comes from the pass. The pass includes waits for shards of parameters and gradients, which layer
/// costs do not include. It has no bubbles, in which a run could hide some of these waits, so the planned
/// time is never too short for this reason. Gathers of all ranks at the start of the step (ZeRO-1 and 2) are
/// waited for if they end later than the previous micro-batch, and the part hidden by bubbles is subtracted
/// from `exposed`.
void place_actions(std::vector<RankPlan>& ranks, const Recipe& resolved, PipelinePlan& pipeline);

/// Memory limits of the plan: a card's memory, and this host's if ranks would run on it. Empty if both are
/// unknown.
std::vector<MemoryLimit> memory_limits(const Plan& plan);
bool fits(const Plan& plan);
/// Explanation in two lines, for memory and for speed, if weights, gradients and optimizer state alone exceed
/// the memory of all cards; else empty.
std::string impossible_text(const Plan& plan);
/// "fits: a rank needs 61.2 GiB, a card has 74.5 GiB", or "does not fit: ...; enough by itself: ...". If no
/// single change is known to be enough, "does not fit: ...; what would help: ...".
std::string fit_text(const Plan& plan);
/// Measured, published and assumed figures of the profile, in lines for people.
std::string sources_text(const Plan& plan);
/// Throws Error (does_not_fit) with the itemised sum if a rank exceeds its card's memory, or the ranks of a
/// host exceed the host's.
void check_memory(const Plan& plan);
/// Settings that would need less memory than the resolved `recipe`.
std::vector<std::string> smaller_settings(const Recipe& recipe);
/// Settings that make the plan fit on their own, with the resulting memory and step time, fastest first:
/// "parallel.zero_stage: 2 (a rank needs 58.9 GiB, a step takes 1.2 % longer)". `plan`: plan of `resolved`,
/// which does not fit. Plans each setting.
std::vector<std::string> enough_settings(const Recipe& resolved, const MachineProfile& profile,
                                         const Plan& plan);
/// Adds offloaded bytes, and the memory that a rank needs for them.
void add_offloaded(RankPlan& plan, const Recipe& recipe);
/// Name and bytes of each kind of offloaded tensor; kinds without offload are omitted.
std::vector<std::pair<std::string, int64_t>> offloaded_text(const OffloadedBytes& bytes);
/// Breakdown of a rank's memory, for people.
std::string memory_text(const RankPlan& rank);

struct RankMap;
/// Text of a plan. `map` (rank_map.h): locations of the ranks. `all_ranks`: the full map, and the memory of
/// every planned rank; else that of the largest.
std::string plan_text(const Plan& plan, const Recipe& recipe, const RankMap* map = nullptr,
                      bool all_ranks = false);
std::string plan_json(const Plan& plan, const RankMap* map = nullptr);
/// Ops of one rank in a train step.
std::vector<TraceEntry> step_entries(const Recipe& resolved, const MachineProfile& profile, int rank);
/// Ops of rank 0 in its micro-batches until `end`, under a layout that may differ from the recipe's.
std::vector<TraceEntry> pass_entries(const Recipe& resolved, const MachineProfile& profile,
                                     const PipelineLayout& layout, StepEnd end);
/// Actions of a train step on one rank without pipeline stages.
std::vector<ActionTime> step_actions(const Recipe& resolved, const MachineProfile& profile,
                                     const PipelineLayout& layout);
/// Memory of rank 0 before its first step, for a model on one pipeline rank: weights, gradients, optimizer
/// state.
MemoryUse before_step(const Recipe& resolved, const MachineProfile& profile);
/// Maximum bytes that a micro-batch of this model keeps from forward to backward on one pipeline rank.
int64_t activation_bytes(const Recipe& resolved, const MachineProfile& profile);
/// Chrome trace of one rank's step.
std::string plan_trace(const Recipe& resolved, const MachineProfile& profile, int rank);

}  // namespace ltrain
