// What a recipe comes to: its mesh, the options of its program and of its loader.
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

/// Where `rank` is on the axes of a resolved recipe.
Mesh mesh_of(const Recipe& recipe, int rank);
/// What a recipe's pipeline came to: the order of work, and the layers of each stage. Chosen once for a run,
/// because schedule: auto and a split by cost follow from the machine profile to the last bit.
struct PipelineLayout {
  pipeline::Schedule schedule;
  std::vector<int> stage_layers;              ///< empty: no pipeline
  std::optional<RecomputeOptions> recompute;  ///< what recompute.granularity: auto chose
  pipeline::Programs programs = {};           ///< of the schedule; null: each rank makes its own
};
/// Makes the programs of a pipeline's ranks, where one process plans several of them.
void lower_once(PipelineLayout& layout);
/// What the recipe says; of auto nothing.
RecomputeOptions recompute_options(const Recipe& recipe);
/// Of a step, from 1.
MatmulPrecision matmul_precision_at(const Recipe& recipe, int64_t step);
/// On meta: a step in each of the products that later phases have and the first has not, for what they take.
void run_other_precisions(const Recipe& recipe, TrainProgram& program);
/// On meta: a step of each smaller batch that train.batch_ramp has on its way, for what a pipeline's order of
/// fewer micro-batches takes. Without a pipeline that is a part of what the whole batch takes.
void run_smaller_steps(const Recipe& recipe, TrainProgram& program);
DispatchOptions dispatch_options(const Recipe& recipe);
OptimizerSettings optimizer_settings(const Recipe& recipe);
/// What of a layer's activations leaves between its forward and its backward.
ActivationOffloadOptions activation_offload(const Recipe& recipe);
/// Where the recipe says that it lies.
OffloadFolders offload_folders(const Recipe& recipe);
std::string pack(const PipelineLayout& layout);  ///< to be sent to the other ranks
PipelineLayout unpack_pipeline_layout(const std::string& packed);

/// What TrainProgram is built from, for a resolved recipe.
ProgramOptions program_options(const Recipe& recipe, const PipelineLayout& layout = {});
/// Refuses a pattern that matches nothing, which is a mistake.
void check_optimizer_of(const Recipe& recipe);
/// The cut of the sequence that the rank of `mesh` has.
ContextSharding context_sharding(const Recipe& recipe, const Mesh& mesh);
/// How the rank that `mesh` is of reads its data.
data::LoaderOptions loader_options(const Recipe& recipe, const Mesh& mesh);
/// Of an evaluation on `sources`.
data::LoaderOptions eval_loader_options(const Recipe& recipe, const Mesh& mesh,
                                        const std::vector<data::SourceSpec>& sources);
/// The recipe's treatment of documents, without `eod`: end_of_document() of runtime/checkpoint knows it.
data::Packing packing(const Recipe& recipe);
/// Threads of each rank: the recipe's, else cores of the host / ranks on it.
int threads_per_rank(const Recipe& resolved);

}  // namespace ltrain
