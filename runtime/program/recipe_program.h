// Translates a recipe into a mesh, program options and loader options.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "parallel/mesh/context_sharding.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/lowering.h"
#include "parallel/pipeline/schedule.h"
#include "runtime/data/batch_loader.h"
#include "runtime/program/offload_memories.h"
#include "runtime/program/train_program.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Mesh coordinates of `rank` for a resolved recipe.
Mesh mesh_of(const Recipe& recipe, int rank);
/// Pipeline of a recipe: the schedule and the layers of each stage. It is chosen once per run, because
/// schedule: auto and a split by cost follow from the machine profile to the last bit.
/// Planned seconds of a step with offload.optimizer.update: device and cpu, without a pipeline's actions.
struct UpdateChoice {
  bool automatic = false;  ///< the recipe has `auto`
  bool host = false;       ///< the host updates
  double device_seconds = 0, host_seconds = 0;
};

/// Devices of offload.optimizer, params and activations.
struct OffloadDevices {
  OffloadDevice optimizer = OffloadDevice::none, params = OffloadDevice::none,
                activations = OffloadDevice::none;
};

struct PipelineLayout {
  pipeline::Schedule schedule;
  std::vector<int> stage_layers;               ///< layers of each stage; empty: no pipeline
  std::optional<RecomputeOptions> recompute;   ///< choice of recompute.granularity: auto
  std::optional<UpdateChoice> update = {};     ///< choice of offload.optimizer.update: auto
  std::optional<OffloadDevices> offload = {};  ///< choice of offload.*.device: auto
  pipeline::Programs programs = {};            ///< programs of `schedule`; null: each rank makes its own
};
/// Lowers the programs of all pipeline ranks once, for a process that plans several of them.
void lower_once(PipelineLayout& layout);
/// Recompute options that the recipe sets itself. Choices of recompute.granularity: auto are not included.
RecomputeOptions recompute_options(const Recipe& recipe);
/// Matmul precision of `step`, counted from 1.
MatmulPrecision matmul_precision_at(const Recipe& recipe, int64_t step);
/// On meta: runs a step in each matmul precision of later phases that the first phase does not use, so that
/// the plan includes their memory. `site`: DiLoCo's site of the rank.
void run_other_precisions(const Recipe& recipe, TrainProgram& program, int64_t site);
/// On meta: runs a step of each smaller batch of train.batch_ramp, so that the plan includes the memory of a
/// pipeline schedule with fewer micro-batches. Does nothing without a pipeline, because the full batch needs
/// at least as much.
void run_smaller_steps(const Recipe& recipe, TrainProgram& program, int64_t site);
DispatchOptions dispatch_options(const Recipe& recipe);
/// Code in which gradients are summed; nullopt: they are not coded.
std::optional<Code> gradient_code(const Recipe& recipe);
OptimizerSettings optimizer_settings(const Recipe& recipe);
/// Activations that are offloaded between a layer's forward and its backward.
ActivationOffloadOptions activation_offload(const Recipe& recipe);
/// Offload folders of the recipe.
OffloadFolders offload_folders(const Recipe& recipe);
/// True if the plan chooses offload.optimizer.update.
bool chooses_update(const Recipe& recipe);
/// True if the layout follows from a machine profile, so that one rank chooses it for all.
bool layout_is_planned(const Recipe& recipe);
std::string pack(const PipelineLayout& layout);  ///< serialized for broadcast to the other ranks
PipelineLayout unpack_pipeline_layout(const std::string& packed);

/// Options of TrainProgram for a resolved recipe.
ProgramOptions program_options(const Recipe& recipe, const PipelineLayout& layout = {});
/// Fails if a parameter pattern of the optimizer section matches no parameter.
void check_optimizer_of(const Recipe& recipe);
/// Parameters of the full model that train: without frozen ones, and with LoRA's adapters.
int64_t trained_parameters(const Recipe& recipe);
/// Context-parallel shard of the sequence on the rank of `mesh`.
ContextSharding context_sharding(const Recipe& recipe, const Mesh& mesh);
/// Loader options of the rank of `mesh`.
data::LoaderOptions loader_options(const Recipe& recipe, const Mesh& mesh);
/// Loader options for an evaluation on `sources`.
data::LoaderOptions eval_loader_options(const Recipe& recipe, const Mesh& mesh,
                                        const std::vector<data::SourceSpec>& sources);
/// Document packing of the recipe, except `eod`, which end_of_document() of runtime/checkpoint returns.
data::Packing packing(const Recipe& recipe);
/// Threads of each rank: the recipe's value, else the cores of the host divided by its ranks.
int threads_per_rank(const Recipe& resolved);

}  // namespace ltrain
