// Rules that have files of their own.
#pragma once
#include "runtime/recipe/moe_rules.h"

namespace ltrain::recipe {

void recompute_rules(const Recipe& recipe, const BrokenRule& broken);
void precision_rules(const Recipe& recipe, const BrokenRule& broken);
void optimizer_rules(const Recipe& recipe, const BrokenRule& broken);

}  // namespace ltrain::recipe
