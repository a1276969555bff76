// Update rule of a parameter, chosen from the recipe, the parameter's name and its shape.
#pragma once
#include <optional>
#include <string_view>

#include "parallel/optim/optimizer_settings.h"

namespace ltrain {

bool name_matches(std::string_view pattern, std::string_view name);

/// Facts about a parameter for the choice of its rule.
struct RuleTarget {
  std::string_view name;
  bool matrix = false;     ///< has two dims
  bool embedding = false;  ///< token or position table, or the projection to the vocabulary
  bool decay = true;       ///< weight decay applies unless a group says otherwise
  bool router = false;     ///< router of an MoE model
  bool stack = false;      ///< stack of matrices, which are its last two dims: experts
};

/// A parameter's rule. A parameter that its optimizer does not take (Optimizer::takes) has AdamW.
struct ParameterRule {
  UpdateRule rule = UpdateRule::adamw;
  bool factored = false;  ///< Adafactor: a matrix
  double lr_scale = 1;
  bool decay = true;
  std::optional<double> weight_decay;  ///< overrides the step's
  bool router = false;                 ///< moves in the warm-up of routers; set only with a warm-up

  /// False: frozen, by its name or as a router.
  bool trains() const { return rule != UpdateRule::frozen; }
  bool operator==(const ParameterRule&) const = default;
};
ParameterRule rule_of(const OptimizerSettings& settings, const RuleTarget& target);

}  // namespace ltrain
