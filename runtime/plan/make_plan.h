// Makes plans: of a job, of one rank, of a pipeline, and the traces that they are made of.
#pragma once
#include <string>
#include <vector>

#include "parallel/pipeline/choose_schedule.h"
#include "parallel/pipeline/simulate.h"
#include "runtime/plan/plan_types.h"
#include "runtime/program/recipe_program.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Pass of a rank's step. `whole` runs every action. With `repeats` later micro-batches of a pipeline replay
/// the actions of a stage's first ones if possible (ActionRepeats): bytes and calls are the same, and seconds
/// too except for rounding.
enum class RankPass : bool { whole, repeats };

/// Assumed node for `world` ranks on cards of this profile: the machine in which such cards are sold. No
/// assumption if the ranks fit on one node, or if this machine with its `gpus` GPUs has them all.
AssumedNode assumed_node(const MachineProfile& profile, int world, int gpus);

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
/// The first rank of each pipeline stage, those of other kinds of sites (site_plan.h), and the last rank.
std::vector<int> ranks_to_plan(const Recipe& resolved, const MachineProfile& profile);
/// Throws Error (usage) for a skew that is impossible in the recipe's layout; with `any_layout`, in any
/// layout of its model.
void check_skew(const Recipe& recipe, double skew, bool any_layout = false);
/// Plans `ranks` (empty: first and last) with a step on meta. Throws Error for a placement error. With a skew
/// in the profile, each rank is the one with the most rows of its expert group, for which the others wait.
/// `layout`: null: from the recipe and the profile.
Plan make_plan(const Recipe& resolved, const MachineProfile& profile, std::vector<int> ranks = {},
               const PipelineLayout* layout = nullptr, RankPass pass = RankPass::whole);
/// The layout with the costs of its stages and the times of its actions.
PipelinePlan priced_pipeline(const Recipe& resolved, const MachineProfile& profile,
                             const PipelineLayout& layout);
/// Plan of one rank, from which `run` sizes its arena. With a pipeline, step_seconds and other_seconds
/// exclude the actions until place_actions adds them. `totals`: also computes values that are only printed:
/// MoE routing, placements.
RankPlan plan_rank(const Recipe& resolved, const MachineProfile& profile, const PipelineLayout& layout,
                   int rank, int threads, bool totals = false, RankPass pass = RankPass::whole);
/// Plan of one rank with only times and memory: step_seconds, actions, total_bytes, host_bytes. Its pass
/// `repeats`.
RankPlan compose_rank(const Recipe& resolved, const MachineProfile& profile, const PipelineLayout& layout,
                      int rank, int threads);
/// Adds the actions of a pipeline to the step times of `ranks`; does nothing without a pipeline. The time of
/// an action is that of its stage's costs, or of the pass of a rank of its stage if that is longer. The time
/// of a pair comes from the pass. The pass includes waits for shards of parameters and gradients, which layer
/// costs do not include. It has no bubbles, in which a run could hide some of these waits, so the planned
/// time is never too short for this reason. Gathers of all ranks at the start of the step (ZeRO-1 and 2) are
/// waited for if they end later than the previous micro-batch, and the part hidden by bubbles is subtracted
/// from `exposed`.
void place_actions(std::vector<RankPlan>& ranks, const Recipe& resolved, const MachineProfile& profile,
                   PipelinePlan& pipeline);

/// Prices a step of rank 0 with either value of offload.optimizer.update, and chooses the recipe's own, or
/// for `auto` the faster one.
UpdateChoice price_updates(const Recipe& resolved, const MachineProfile& profile, PipelineLayout layout);
/// Choice of the layout, or the prices where both values would work; else null.
std::optional<UpdateChoice> planned_update(const Recipe& resolved, const MachineProfile& profile,
                                           const PipelineLayout& layout);
/// Adds offloaded bytes, and the memory that a rank needs for them.
void add_offloaded(RankPlan& plan, const Recipe& recipe);
/// Adds an entry's part of the transfers and host work of offload.optimizer.
void add_states_moved(RankPlan& plan, const TraceEntry& entry);
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

}  // namespace ltrain
