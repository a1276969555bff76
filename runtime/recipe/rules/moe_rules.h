// The rules of MoE models.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain::recipe {

/// Reports that the value of `path` breaks a rule: `text` says which, and what would work. `others`: keys
/// that have a part in it.
using BrokenRule = std::function<void(const std::string& path, const std::string& text,
                                      const std::vector<std::string>& others)>;

/// What does not depend on the number of ranks.
void check_moe(const Recipe& recipe, const BrokenRule& broken);
/// What is allowed and may surprise, for the user.
void moe_notes(const Recipe& recipe, std::vector<std::string>& notes);
/// With `data` data-parallel ranks, of which `inside` (0: all) are of the first level of gradients.
void check_moe_layout(const Recipe& recipe, int64_t data, int64_t shard, const BrokenRule& broken);

}  // namespace ltrain::recipe
