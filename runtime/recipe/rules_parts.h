// Rules that have files of their own.
#pragma once
#include "runtime/recipe/moe_rules.h"

namespace ltrain::recipe {

void recompute_rules(const Recipe& recipe, const BrokenRule& broken);
void graph_rules(const Recipe& recipe, const BrokenRule& broken);
void graph_layout_rules(const Recipe& recipe, int64_t world_size, const BrokenRule& broken);
void optimizer_rules(const Recipe& recipe, const BrokenRule& broken);

}  // namespace ltrain::recipe
