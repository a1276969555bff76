// Rules over more than one setting.
#pragma once
#include "parallel/mesh/mesh.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/recipe.h"

namespace ltrain::recipe {

/// Everything that does not depend on the number of ranks. Notes name settings that have no effect.
void check_rules(const Recipe& recipe, const RecipeOrigins& origins, Diagnostics& diagnostics,
                 std::vector<std::string>& notes);
/// The rest. `ranks_per_node`: 0: as the recipe says, else one node has all.
void check_layout(const Recipe& recipe, const RecipeOrigins& origins, int64_t world_size,
                  int64_t ranks_per_node, Diagnostics& diagnostics);

/// What depends on the device of a resolved recipe.
void check_device_rules(const Recipe& resolved, const RecipeOrigins& origins, Diagnostics& diagnostics);

/// Ranks that share a host: as said, else launch.ranks_per_node, else all.
int64_t ranks_on_host(const Recipe& recipe, int64_t world_size, int64_t ranks_per_node);

/// Tensor ranks have experts of their own instead of a part of each.
bool experts_apart(const Recipe& recipe);

/// The mesh of so many data-parallel ranks, before it has levels and tensor-parallel ranks a shape.
Mesh plain_mesh(const Recipe& recipe, int64_t data);

/// Parallel::shard_ranks of a recipe that check_layout found no problem in.
int64_t shard_ranks(const Recipe& recipe, int64_t world_size, int64_t ranks_per_node);

}  // namespace ltrain::recipe
