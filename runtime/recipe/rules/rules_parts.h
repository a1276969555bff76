// Rules that have files of their own.
#pragma once
#include "parallel/mesh/mesh.h"
#include "runtime/recipe/rules/moe_rules.h"

namespace ltrain::recipe {

void level_rules(const Recipe& recipe, const BrokenRule& broken);
/// Parallel::shard_ranks, 0 for one level. Reports where `broken` is given.
int64_t level_layout(const Recipe& recipe, int64_t world_size, int64_t ranks_per_node,
                     const BrokenRule& broken);
/// Ranks of one host in each group of `mesh` over `axes`, when it is as many everywhere; else 0.
int64_t on_each_host(const Mesh& mesh, AxisSet axes, int64_t per_host);
/// "node", or the number of ranks of a first level.
std::string level_text(int64_t ranks);
void recompute_rules(const Recipe& recipe, const BrokenRule& broken);
void graph_rules(const Recipe& recipe, const BrokenRule& broken);
void graph_layout_rules(const Recipe& recipe, int64_t world_size, const BrokenRule& broken);
/// True where the steps of `resolved`, which has its device, are captured as CUDA graphs.
bool captures_steps(const Recipe& resolved);
void overlap_rules(const Recipe& recipe, const BrokenRule& broken);
/// A micro-batch's backward and another one's forward run by turns; in a pipeline, where its schedule says
/// so.
bool overlaps_micro_batches(const Recipe& recipe);
/// Tensor-parallel products run in parts. `resolved`: has its device.
bool async_tensor_parallel(const Recipe& resolved);
/// What hides collectives of a layer, with the key that says so; empty: nothing does. `beside`: a step has a
/// forward and a backward of two micro-batches beside each other.
std::string overlap_text(const Recipe& resolved, bool beside);
/// The same recipe with its micro-batches one after the other and its products as they are: what pairs of
/// them are priced beside.
Recipe micro_batches_apart(Recipe resolved);
void attention_rules(const Recipe& recipe, const BrokenRule& broken);
void fp8_rules(const Recipe& recipe, const BrokenRule& broken);
void precision_rules(const Recipe& recipe, const BrokenRule& broken);
void profile_rules(const Recipe& recipe, const BrokenRule& broken);
void profile_layout_rules(const Recipe& recipe, int64_t world_size, const BrokenRule& broken);
void offload_rules(const Recipe& recipe, const BrokenRule& broken);
/// Of a resolved recipe: what its device cannot do.
void offload_device_rules(const Recipe& resolved, const BrokenRule& broken);
void attention_device_rules(const Recipe& resolved, const BrokenRule& broken);
/// `data`: data-parallel ranks.
void batch_ramp_rules(const Recipe& recipe, int64_t data, const BrokenRule& broken);
void optimizer_rules(const Recipe& recipe, const BrokenRule& broken);
/// What an optimizer leaves to AdamW, and a warm-up of 1-bit optimizers that is short.
void optimizer_notes(const Recipe& recipe, const RecipeOrigins& origins, std::vector<std::string>& notes);
void checkpoint_rules(const Recipe& recipe, const BrokenRule& broken);
void sparsity_rules(const Recipe& recipe, const BrokenRule& broken);
void onebit_rules(const Recipe& recipe, const BrokenRule& broken);
void sophia_rules(const Recipe& recipe, const BrokenRule& broken);

/// A rule of the optimizer, or of a group, that does not update each element by itself: its name and where
/// it stands; else two empty texts. 8-bit AdamW has states of its own kind and counts.
std::pair<std::string, std::string> not_by_element(const Recipe& recipe);

}  // namespace ltrain::recipe
