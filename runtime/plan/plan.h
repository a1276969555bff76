// A plan: one step of a recipe run on the meta device, with what it takes and how long.
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
  int64_t network_bytes = 0;  ///< of them, to other hosts
  double seconds = 0;
};

struct OpPlan {
  std::string name;
  int64_t calls = 0;
  double flops = 0, bytes = 0, seconds = 0;
};

/// Memory that a rank needs beside its arena, and where the figure is from.
struct ExternalMemory {
  std::string name;
  int64_t bytes = 0;
  std::string source;
  DeviceKind where = DeviceKind::cpu;  ///< whose memory it is
};

struct RankPlan {
  int rank = 0;
  MemoryUse arena;  ///< peak over the train and eval steps
  /// Of MoE models: the arena if tokens went to experts evenly; sent between experts at worst. 0: the same.
  int64_t even_arena_bytes = 0, worst_expert_bytes = 0;
  double row_budget = 0;      ///< model.moe.row_budget, where it bounds what comes to a rank
  int64_t staging_bytes = 0;  ///< host memory that copies to the device go through; 0 on the CPU
  std::vector<ExternalMemory> outside;
  OffloadedBytes offloaded;                           ///< in files, or of the host's memory
  int64_t total_bytes = 0;                            ///< of the device's memory
  int64_t host_bytes = 0;                             ///< of the host's; on the CPU the same
  int64_t train_wire_bytes = 0, eval_wire_bytes = 0;  ///< a train step; an eval pass over all its batches
  std::vector<CollectivePlan> collectives;            ///< of a train step
  std::set<FigureUse> figures;                        ///< of a card's profile, that times were made with
  std::vector<OpPlan> ops;                            ///< of a train step, longest first
  double model_flops = 0;                             ///< of a train step on this rank (OpCost::model_flops)
  double step_seconds = 0;
  /// Compute waiting for communication, by axis as in metrics ("dp", "tp", ...): longest first.
  std::vector<std::pair<std::string, double>> exposed;
  double exposed_comm_seconds() const;  ///< of all axes
  double exposed_offload_seconds = 0;   ///< compute waiting for what is offloaded
  double eval_seconds = 0;              ///< one evaluation
  /// Of steps of another kind (StepKinds): bytes and seconds; 0 where all are of one.
  int64_t other_wire_bytes = 0;
  double other_seconds = 0;
  int other_passes = 0;       ///< of such a step over its micro-batches
  int64_t placement_ops = 0;  ///< ops and collectives whose placements were checked
  /// Of a pipeline: each action of its order in the rank's pass, one after the other without bubbles; a pair
  /// is told by its first.
  std::vector<ActionTime> actions;
};

/// A memory that ranks need, of a card or of this host.
struct MemoryLimit {
  DeviceKind of = DeviceKind::cuda;  ///< cuda: a card's; cpu: this host's
  int ranks = 1;                     ///< that share it
  int64_t rank_bytes = 0;            ///< of the rank that takes most
  int64_t available_bytes = 0;
  int64_t needed_bytes() const { return ranks * rank_bytes; }
  bool fits() const { return needed_bytes() <= available_bytes; }
};

/// Cards of a node, where neither the recipe nor the environment says how ranks lie on nodes.
struct AssumedNode {
  int cards = 0;     ///< 0: nothing is assumed
  std::string card;  ///< "H100"
  std::string source = "assumed";
  /// "a node: 8 H100, assumed"
  std::string text() const { return fmt::format("a node: {} {}, {}", cards, card, source); }
};
/// Of `world` ranks on cards of this profile: what such cards are sold in. None where fewer ranks than that
/// have a node of their own, or where this machine, with `gpus` GPUs, has them all.
AssumedNode assumed_node(const MachineProfile& profile, int world, int gpus);

struct Plan {
  std::string recipe_name;
  DeviceKind device = DeviceKind::cpu;
  int64_t device_bytes = 0;  ///< memory of a card; 0 on the CPU
  int world = 1;
  int threads_per_rank = 1;
  int ranks_on_host = 1;  ///< that `run` would start here
  AssumedNode node;
  int64_t parameters = 0;
  int64_t sparse_parameters = 0, sparse_from = 0;  ///< of them, in matrices that are 2:4 sparse; from a step
  int64_t tokens_per_step = 0, accumulation = 1;
  int64_t train_steps = 0;
  StepKinds kinds;
  int64_t evaluations = 0;  ///< passes over the held-out data until train_steps
  std::string profile;      ///< its source
  bool profile_measured = false;
  bool profile_built_in = false;  ///< priced by a card's figures, not by samples of this machine
  double network_bytes_per_second =
      0;                       ///< of a host with ranks_on_host, that bytes between hosts are priced by
  bool network_given = false;  ///< the profile says so; else it is assumed
  std::string network_source;  ///< "by the profile", "assumed: ..."
  double peak_flops = 0;       ///< of one rank, for MFU: the profile's fastest matmul of the dtype
  std::string attention;       ///< which kernels a GPU has for it; empty: on the CPU, or not known
  std::string experts;         ///< likewise for their products; empty: there are none
  std::string overlap;         ///< what hides the collectives of layers, in words; else empty
  std::string recompute;       ///< what granularity: auto chose, in words; else empty
  double expert_skew = 1;      ///< MachineProfile::expert_skew; all below are at it but model FLOPs
  /// Weights, gradients and optimizer state on cards, of a parameter; 0 where the plan fits.
  double state_bytes = 0;
  double even_step_seconds = 0;  ///< of the slowest rank at even routing, where expert_skew is above 1
  std::string schedule;          ///< of a pipeline, the one that `auto` chose too; a file's path; else empty
  int pipeline_chunks = 1;       ///< stages of a pipeline rank
  double bubble_share = 0;       ///< of a pipeline's ranks and actions: Timing::bubble_share
  double action_seconds = 0;     ///< of a pipeline: Timing::makespan
  int64_t placement_ops = 0;     ///< ops and collectives whose placements were checked
  std::vector<RankPlan> ranks;   ///< the distinct ones: the first of each pipeline stage, and the last
  int stages = 0;                ///< of them, the first of each stage; 0: other ranks were asked for
  int64_t host_bytes = 0;        ///< of this host's memory, the cgroup's limit when lower
  /// Ranks would run on hosts like this one: their memory is compared with this host's.
  bool for_this_machine = true;
  std::vector<std::string> smaller;  ///< settings that would need less memory, as the recipe is
  std::vector<std::string> enough;   ///< enough_settings(), where they were looked for

  double step_seconds() const;  ///< of the slowest rank
  /// Model FLOPs of all ranks over what their matmul peaks would do in a step; pipeline stages differ, ranks
  /// of a stage do not.
  double mfu() const;
  /// Whether peak_flops is a card's figure or was measured. Without either MFU is a share of a guess, and is
  /// not shown.
  bool peak_known() const { return profile_measured || profile_built_in; }
  double model_flops() const;     ///< of all ranks in a step
  double total_seconds() const;   ///< all steps and evaluations, of the slowest rank
  int64_t network_bytes() const;  ///< that the first rank sends to other hosts in a step
  double tokens_per_second() const { return step_seconds() > 0 ? tokens_per_step / step_seconds() : 0; }
};

/// For granularity: auto: of the ways to recompute the one with the shortest planned step whose ranks stay in
/// the budget. Error when none does: usage where recompute.budget is set, else does_not_fit.
RecomputeOptions choose_recompute(const Recipe& resolved, const MachineProfile& profile,
                                  const PipelineLayout& layout);
/// For `schedule: auto`: bytes of activations that fit beside all else, by pipeline rank, in the card's
/// memory or the share that a rank has of this host's. Empty for other schedules.
std::vector<double> activation_limit(const Recipe& resolved, const MachineProfile& profile);
/// What runs on the stages of a pipeline, and when; without one both are empty, but for what
/// recompute.granularity: auto chose.
struct PipelinePlan {
  PipelineLayout layout;
  pipeline::StageCosts costs;
  pipeline::Timing timing;
};
/// `costs`: null: layer_costs of the recipe (schedule_plan.h).
PipelinePlan plan_pipeline(const Recipe& resolved, const MachineProfile& profile,
                           const pipeline::LayerCosts* costs = nullptr);
PipelineLayout pipeline_layout(const Recipe& resolved, const MachineProfile& profile);
/// The job of a plan without its ranks and what is counted in the model: devices, hosts, steps, network.
Plan job_of(const Recipe& resolved, const MachineProfile& profile);
/// The first of each pipeline stage, and the last of all.
std::vector<int> ranks_to_plan(const Recipe& resolved);
/// Refuses a skew that the recipe's layout cannot have; `any_layout`: of its model alone. Error (usage).
void check_skew(const Recipe& recipe, double skew, bool any_layout = false);
/// Runs the step on meta for `ranks` (empty: first and last). Throws Error on a placement error. With a skew
/// of the profile each rank is one with the most rows of its expert group, which the others wait for.
/// `layout`: null: from the recipe and the profile.
Plan make_plan(const Recipe& resolved, const MachineProfile& profile, std::vector<int> ranks = {},
               const PipelineLayout* layout = nullptr);
/// The layout with the costs of its stages and the times of its actions.
PipelinePlan priced_pipeline(const Recipe& resolved, const MachineProfile& profile,
                             const PipelineLayout& layout);
/// Of the profile and recipe, for one rank: what `run` sizes its arena by. With a pipeline its step_seconds
/// and other_seconds are without the actions, until place_actions. `totals`: with what is printed of
/// it beside: MoE routing, placements.
RankPlan plan_rank(const Recipe& resolved, const MachineProfile& profile, const PipelineLayout& layout,
                   int rank, int threads, bool totals = false);
/// Of the same rank only its time, its actions' and its memory: total_bytes, host_bytes. Composed of the
/// passes of a stage's first micro-batches, where the others repeat them (ActionRepeats): bytes are those of
/// plan_rank, seconds too but for rounding.
RankPlan compose_rank(const Recipe& resolved, const MachineProfile& profile, const PipelineLayout& layout,
                      int rank, int threads);
/// Adds the actions of a pipeline to the steps of `ranks`; nothing without a pipeline. An action takes what
/// its stage's costs say, or what it took in the pass of a rank of its stage where that is longer, a pair
/// what it took there: there it waits for shards of parameters and gradients too, which costs of layers do
/// not know. That pass has no bubbles, in which a run could hide some of that wait, so such a plan is never
/// too fast by it. What all ranks gather from the begin of the step on (ZeRO-1 and 2) is waited for where it
/// comes later than the micro-batch before it alone, and what the bubbles hide of it is taken from `exposed`.
void place_actions(std::vector<RankPlan>& ranks, const Recipe& resolved, PipelinePlan& pipeline);

/// What the plan is compared with: a card's memory, and this host's where ranks would run on it. Empty where
/// neither is known.
std::vector<MemoryLimit> memory_limits(const Plan& plan);
bool fits(const Plan& plan);
/// Where weights, gradients and optimizer state alone exceed the memory of all cards: the arithmetic in two
/// lines, of memory and of speed. Else empty.
std::string impossible_text(const Plan& plan);
/// "fits: a rank needs 61.2 GiB, a card has 74.5 GiB", or "does not fit: ...; enough by itself: ...", or
/// where no single change is known to be enough "does not fit: ...; what would help: ...".
std::string fit_text(const Plan& plan);
/// What of the profile that prices it is measured, published and assumed, in lines for people.
std::string sources_text(const Plan& plan);
/// Throws Error (does_not_fit), with the itemised sum, when a rank exceeds its card's memory, or the ranks of
/// a host exceed the host's.
void check_memory(const Plan& plan);
/// Settings that would need less memory than `recipe`, which is resolved.
std::vector<std::string> smaller_settings(const Recipe& recipe);
/// Those of them that each make the plan fit by itself, with the memory and the time of a step that it comes
/// to, the fastest first: "parallel.zero_stage: 2 (a rank needs 58.9 GiB, a step takes 1.2 % longer)".
/// `plan`: of `resolved`, does not fit. Plans each of them.
std::vector<std::string> enough_settings(const Recipe& resolved, const MachineProfile& profile,
                                         const Plan& plan);
/// What of it a rank has in its memory all the same.
void add_offloaded(RankPlan& plan, const Recipe& recipe);
/// What is offloaded, by its name, without what is not.
std::vector<std::pair<std::string, int64_t>> offloaded_text(const OffloadedBytes& bytes);
/// What a rank's memory goes to, for people.
std::string memory_text(const RankPlan& rank);

struct RankMap;
/// With `map` (rank_map.h): where the ranks are.
/// `all_ranks`: the whole map, and the memory of every rank that was planned; else that of the rank that
/// takes most.
std::string plan_text(const Plan& plan, const Recipe& recipe, const RankMap* map = nullptr,
                      bool all_ranks = false);
std::string plan_json(const Plan& plan, const RankMap* map = nullptr);
/// What one rank does in a train step, op by op.
std::vector<TraceEntry> step_entries(const Recipe& resolved, const MachineProfile& profile, int rank);
/// What rank 0 does in its micro-batches, under a layout that need not be the recipe's, until `end`.
std::vector<TraceEntry> pass_entries(const Recipe& resolved, const MachineProfile& profile,
                                     const PipelineLayout& layout, StepEnd end);
/// The actions of a train step on one rank without stages.
std::vector<ActionTime> step_actions(const Recipe& resolved, const MachineProfile& profile,
                                     const PipelineLayout& layout);
/// Of rank 0 of a model on one pipeline rank, before its first step: weights, gradients, optimizer state.
MemoryUse before_step(const Recipe& resolved, const MachineProfile& profile);
/// Bytes that a micro-batch of this model keeps from forward to backward on one pipeline rank, at most.
int64_t activation_bytes(const Recipe& resolved, const MachineProfile& profile);
/// Chrome trace of one rank's step.
std::string plan_trace(const Recipe& resolved, const MachineProfile& profile, int rank);

}  // namespace ltrain
