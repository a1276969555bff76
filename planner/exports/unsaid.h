// Settings of a recipe that an export to another trainer cannot express.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain::exports {

/// An export: its text, and "key = value" of every setting that affects the computation or its layout and has
/// no equivalent.
struct Exported {
  std::string text;
  std::vector<std::string> unsaid;
};

/// Value of a key in YAML; "" if the key is null or has no meaning in this recipe.
std::string value_of(const Recipe& recipe, const std::string& key);
/// Value in the form of other programs' flags: 1e-05, 10000 for 10000.0.
std::string plain_value(const Recipe& recipe, const std::string& key);
/// Keys of the model, layout, optimizer, schedule and precision that differ from their defaults, except those
/// in `said`.
std::vector<std::string> unsaid_settings(const Recipe& recipe, const std::set<std::string>& said);

}  // namespace ltrain::exports
