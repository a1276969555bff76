// Pipeline schedule of a recipe, priced by its plan.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "models/layers/recompute.h"
#include "parallel/pipeline/choose_schedule.h"
#include "runtime/machines/machine_profile.h"
#include "runtime/program/train_program.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

struct SchedulePlan {
  pipeline::Schedule schedule;
  pipeline::StagedCosts staged;            ///< layers and costs of each stage
  pipeline::Timing timing;                 ///< timing of the micro-batches of one step
  std::vector<pipeline::Candidate> tried;  ///< for schedule: auto
  std::string costs;                       ///< description of the costs for people
  std::vector<std::string> notes;          ///< notes on a schedule file
};

/// Costs of one micro-batch by layer in seconds: forward, and backward of inputs and of weights, including
/// waits for collectives of the other axes. They come from a meta pass over the full model with these axes,
/// priced by the profile. Also transfers between stages, and a layer's saved activations in bytes.
/// `recompute`: recompute policy; default: the recipe's, and none for auto.
pipeline::LayerCosts layer_costs(const Recipe& resolved, const MachineProfile& profile,
                                 std::optional<RecomputeOptions> recompute = {});

/// Returns whether all layers of the model are equal, in the same precision.
bool layers_alike(const Recipe& resolved);
/// Point at which a priced step may end. With FP8 the second micro-batch is needed too.
StepEnd priced_end(const Recipe& resolved);

/// Transfer time of one micro-batch between two stages, indexed by [from * stages' ranks + to]: this rank's
/// rows and columns of the residual stream, over the network if the two are on different hosts.
std::vector<double> transfer_seconds(const Recipe& resolved, const MachineProfile& profile);

/// Plans parallel.schedule, the file of parallel.schedule_file, or the fastest schedule for `auto`. The split
/// is parallel.pipeline_layers, or the one with the cheapest largest stage. If a schedule splits the
/// backward, the weight parts are placed by cost (fill_weights.h), except in a file, which runs unchanged.
/// `limit`: by pipeline rank, as in ChoiceOptions. Throws Error (usage) for a file that is not a schedule or
/// does not match the recipe.
SchedulePlan plan_schedule(const Recipe& resolved, const pipeline::LayerCosts& costs,
                           const std::vector<double>& limit = {});

/// Drawing in at most `width` columns, table by rank, stages, and the candidates of `auto`.
std::string schedule_text(const SchedulePlan& plan, int width);
std::string schedule_json(const SchedulePlan& plan);

}  // namespace ltrain
