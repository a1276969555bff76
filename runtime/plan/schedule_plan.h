// The pipeline schedule that a recipe asks for, priced by its plan.
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
  pipeline::StagedCosts staged;            ///< layers by stage, and what each stage costs
  pipeline::Timing timing;                 ///< of one step's micro-batches
  std::vector<pipeline::Candidate> tried;  ///< schedule: auto
  std::string costs;                       ///< what the costs are, for people
  std::vector<std::string> notes;          ///< of a schedule file
};

/// Seconds of one micro-batch by layer: forward, and backward of inputs and of weights apart, waits for
/// collectives of the other axes included. From a meta pass over the whole model with these axes, priced by
/// the profile. Transfers between stages too; a layer's activations in bytes. `recompute`: what backward
/// computes again; without it what the recipe says, and nothing where it says auto.
pipeline::LayerCosts layer_costs(const Recipe& resolved, const MachineProfile& profile,
                                 std::optional<RecomputeOptions> recompute = {});

/// Whether every layer of the model does what every other one does, in the same precision.
bool layers_alike(const Recipe& resolved);
/// Where a step can end of which the first micro-batch is priced: with FP8 some is told by the second.
StepEnd priced_end(const Recipe& resolved);

/// What a stage hands to another for one micro-batch, by [from * stages' ranks + to]: this rank's rows and
/// columns of the residual stream, over the network where the two are on different hosts.
std::vector<double> transfer_seconds(const Recipe& resolved, const MachineProfile& profile);

/// parallel.schedule, or the file of parallel.schedule_file, or for `auto` the fastest; with
/// parallel.pipeline_layers or the split whose largest stage costs least. Where a schedule splits the
/// backward, the weight parts are placed by cost (fill_weights.h), but for a file, which is run as it is.
/// `limit`, by pipeline rank: as ChoiceOptions. Throws Error (usage) for a file that is no schedule, or is
/// one for other numbers than the recipe's.
SchedulePlan plan_schedule(const Recipe& resolved, const pipeline::LayerCosts& costs,
                           const std::vector<double>& limit = {});

/// Drawing in at most `width` columns, table by rank, stages, and what `auto` tried.
std::string schedule_text(const SchedulePlan& plan, int width);
std::string schedule_json(const SchedulePlan& plan);

}  // namespace ltrain
