// What combines with what: every pair of parallel axes, schedules, ZeRO stages, precisions and model
// features, found by giving a small recipe of the two to the rules that check recipes and to the pass that
// plans them.
#pragma once
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain {

/// A row and column of the table: what it sets in a recipe.
struct CompositionFeature {
  std::string name;  ///< "pipeline, zb-h1"
  std::vector<std::string> overrides;
};

struct CompositionCell {
  size_t a = 0, b = 0;  ///< features; a == b: the feature alone
  enum State : uint8_t {
    supported,
    refused,
    exclusive
  } state = supported;                 ///< exclusive: two values of a key
  std::vector<std::string> overrides;  ///< of the probe, beside composition_base()
  std::string reason;                  ///< when refused: what the rules say
  std::string nearest;                 ///< when refused: the part of it that is accepted
};

/// The recipe that the probes change: four layers, four heads, sixteen short sequences a step.
const std::string& composition_base();
std::vector<CompositionFeature> composition_features();
/// All pairs, a <= b, in order.
std::vector<CompositionCell> compositions();
/// The probe of a cell, resolved. Throws what makes the cell refused.
Recipe composition_recipe(const std::vector<std::string>& overrides);

std::string compositions_text(const std::vector<CompositionCell>& cells);
std::string compositions_json(const std::vector<CompositionCell>& cells);

}  // namespace ltrain
