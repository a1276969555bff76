// Table of supported combinations: every pair of parallel axes, schedules, ZeRO stages, precisions and model
// features. Each is tested with a small recipe against the recipe rules and the planning pass.
#pragma once
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain {

/// A row and column of the table: its settings in a recipe.
struct CompositionFeature {
  std::string name;  ///< "pipeline, zb-h1"
  std::vector<std::string> overrides;
};

struct CompositionCell {
  size_t a = 0, b = 0;  ///< features; a == b: a single feature
  enum State : uint8_t {
    supported,
    refused,
    exclusive
  } state = supported;                 ///< exclusive: two values of one key
  std::vector<std::string> overrides;  ///< settings of the probe in addition to composition_base()
  std::string reason;                  ///< when refused: reason from the rules
  std::string nearest;                 ///< when refused: the nearest accepted part
};

/// The recipe that the probes change: four layers, four heads, sixteen short sequences per step.
const std::string& composition_base();
std::vector<CompositionFeature> composition_features();
/// All pairs, a <= b, in order.
std::vector<CompositionCell> compositions();
/// Resolved probe of a cell. Throws the reason for which a cell is refused.
Recipe composition_recipe(const std::vector<std::string>& overrides);

std::string compositions_text(const std::vector<CompositionCell>& cells);
std::string compositions_json(const std::vector<CompositionCell>& cells);

}  // namespace ltrain
