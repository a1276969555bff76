// Rules over more than one setting.
#pragma once
#include "parallel/mesh/mesh.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/recipe.h"

namespace ltrain::recipe {

/// Checks all rules that do not depend on the number of ranks. Notes name settings without effect.
void check_rules(const Recipe& recipe, const RecipeOrigins& origins, Diagnostics& diagnostics,
                 std::vector<std::string>& notes);
/// Checks the rules that depend on the number of ranks. `ranks_per_node`: 0 for the recipe's value, or all
/// ranks on one node.
void check_layout(const Recipe& recipe, const RecipeOrigins& origins, int64_t world_size,
                  int64_t ranks_per_node, Diagnostics& diagnostics);

/// Checks the rules that depend on the device of a resolved recipe.
void check_device_rules(const Recipe& resolved, const RecipeOrigins& origins, Diagnostics& diagnostics);

/// Ranks that share a host: `ranks_per_node`, else launch.ranks_per_node, else all.
int64_t ranks_on_host(const Recipe& recipe, int64_t world_size, int64_t ranks_per_node);

/// Returns whether tensor ranks have their own experts instead of a shard of each expert.
bool experts_apart(const Recipe& recipe);

/// Mesh with `data` data-parallel ranks, before the split into levels and the tensor-parallel layout.
Mesh plain_mesh(const Recipe& recipe, int64_t data);

/// Parallel::shard_ranks of a recipe that check_layout accepts.
int64_t shard_ranks(const Recipe& recipe, int64_t world_size, int64_t ranks_per_node);

/// Sequences that `data` data-parallel ranks train in the smallest step: a micro-batch of each, and with
/// diloco.shares as many as each site's share has.
int64_t batch_unit(const Recipe& recipe, int64_t data);
/// The factors of batch_unit, in words.
std::string batch_unit_text(const Recipe& recipe, int64_t data);
/// True if sites of DiLoCo can save, evaluate and end after any step, and not only when they synchronize: the
/// weights that they share are kept beside their own, and routers have no bias that sites average.
bool meets_anywhere(const Recipe& recipe);

}  // namespace ltrain::recipe
