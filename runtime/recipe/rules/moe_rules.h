// Rules of MoE models.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain::recipe {

/// Reports that the value of `path` breaks a rule. `text`: the rule and suggestions. `others`: other keys
/// involved.
using BrokenRule = std::function<void(const std::string& path, const std::string& text,
                                      const std::vector<std::string>& others)>;

/// Checks the rules that do not depend on the number of ranks.
void check_moe(const Recipe& recipe, const BrokenRule& broken);
/// Adds notes about valid settings that may surprise a user.
void moe_notes(const Recipe& recipe, std::vector<std::string>& notes);
/// Checks the layout with `data` data-parallel ranks. `shard`: ranks of the first gradient level; 0: all.
void check_moe_layout(const Recipe& recipe, int64_t data, int64_t shard, const BrokenRule& broken);

}  // namespace ltrain::recipe
