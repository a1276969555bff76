// What of a recipe an export to another trainer could not say.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain::exports {

/// An export: the text, and "key = value" of every setting that changes what is computed, or how it is
/// spread, that has no place in it.
struct Exported {
  std::string text;
  std::vector<std::string> unsaid;
};

/// The value of a key as YAML writes it; "" where the key has no meaning in this recipe, or is null.
std::string value_of(const Recipe& recipe, const std::string& key);
/// As other programs' flags take it: 1e-05, 10000 for 10000.0.
std::string plain_value(const Recipe& recipe, const std::string& key);
/// Keys of the model, layout, optimizer, schedule and precision with another value than the default, without
/// `said`.
std::vector<std::string> unsaid_settings(const Recipe& recipe, const std::set<std::string>& said);

}  // namespace ltrain::exports
