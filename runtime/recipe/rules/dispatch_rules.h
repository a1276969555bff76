// The rules of how tokens are dispatched to their experts.
#pragma once
#include "runtime/recipe/rules/moe_rules.h"

namespace ltrain::recipe {

/// What does not depend on the number of ranks.
void check_dispatch(const Recipe& recipe, const BrokenRule& broken);
/// Parallel::intra_node_experts: ranks of the first of two levels of the all-to-all, 0 for one level. With
/// `data` data-parallel ranks, of which `inside` (0: all) are of the first level of gradients, and hosts of
/// `per_node` ranks. Reports violations where `broken` is given.
int64_t intra_node_experts(const Recipe& recipe, int64_t data, int64_t shard, int64_t per_node,
                           const BrokenRule& broken = {});

}  // namespace ltrain::recipe
