// A text as a recipe of one name.
#pragma once
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain::test {

inline Recipe parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_recipe(text, "r.yaml", overrides);
}

}  // namespace ltrain::test
