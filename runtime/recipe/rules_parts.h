// Rules that have files of their own, and how they say what is broken.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain::recipe {

/// Breaks at a key; the place is where it was given, or where the first given one of the others was.
using Broken = std::function<void(const std::string& path, const std::string& text,
                                  const std::vector<std::string>& others)>;

void recompute_rules(const Recipe& recipe, const Broken& broken);
void optimizer_rules(const Recipe& recipe, const Broken& broken);

}  // namespace ltrain::recipe
