// Rules of the token dispatch to experts.
#pragma once
#include "runtime/recipe/rules/moe_rules.h"

namespace ltrain::recipe {

/// Checks the rules that do not depend on the number of ranks.
void check_dispatch(const Recipe& recipe, const BrokenRule& broken);
/// Returns Parallel::intra_node_experts: ranks of the intra-node level of the all-to-all; 0: one level.
/// `data`: data-parallel ranks. `shard`: ranks of the first gradient level; 0: all. `per_node`: ranks of a
/// host. Reports violations to `broken` if it is set.
int64_t intra_node_experts(const Recipe& recipe, int64_t data, int64_t shard, int64_t per_node,
                           const BrokenRule& broken = {});

}  // namespace ltrain::recipe
