// Which update rule a parameter has: chosen by the recipe, by the parameter's name and by its shape.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/optimizer/adamw_args.h"
#include "kernels/optimizer/lamb_limits.h"
#include "parallel/optim/sparsity.h"

namespace ltrain {

enum class UpdateRule : uint8_t {
  adamw,
  adam,
  sgd,
  lion,
  lamb,
  adafactor,
  muon,
  adamw8bit,
  onebit_adam,
  onebit_lamb,
  sophia_h,
  still
};
constexpr int kUpdateRules = 11;  ///< that a recipe can ask for: without `still`, which has no gradient
std::string_view update_rule_name(UpdateRule r);
/// Its moments are averaged over ranks in a compressed all-reduce after a warm-up.
constexpr bool is_onebit(UpdateRule r) {
  return r == UpdateRule::onebit_adam || r == UpdateRule::onebit_lamb;
}
/// The rule of that name, or nothing.
std::optional<UpdateRule> update_rule(std::string_view name);

/// A group of parameters with settings of its own. The first group whose pattern matches a name counts.
struct OptimizerGroup {
  std::string match;  ///< of whole names; * stands for any characters, ? for one
  std::optional<UpdateRule> rule;
  double lr_scale = 1;                 ///< of the schedule's learning rate
  std::optional<double> weight_decay;  ///< also of norms and biases, when given
};
bool name_matches(std::string_view pattern, std::string_view name);

/// What stays the same from step to step. AdamwArgs has what may change.
struct OptimizerSettings {
  UpdateRule rule = UpdateRule::adamw;
  double momentum = 0.9;  ///< sgd; muon has muon_momentum
  bool nesterov = false;  ///< sgd
  double lion_beta1 = 0.9, lion_beta2 = 0.99;
  double muon_momentum = 0.95;
  int muon_steps = 5;                ///< of the Newton-Schulz iteration
  double muon_lr_scale = 1;          ///< learning rate of Muon's matrices over that of the others
  bool muon_match_rms = false;       ///< scale of the direction: 0.2 sqrt(max(rows, columns)), AdamW's
  double adafactor_decay = 0.8;      ///< of the second moment: 1 - step^-this
  double adafactor_eps = 1e-3;       ///< least root mean square of a parameter that its step is a part of
  double adafactor_threshold = 1.0;  ///< largest root mean square of an update
  int64_t freeze_step = 1;           ///< 1-bit rules: the last step of their warm-up
  LambLimits lamb_limits;            ///< 1-bit LAMB
  int64_t hessian_interval = 10;     ///< Sophia: steps from one estimate to the next, the first step has one
  double sophia_gamma = 0.01;        ///< of the diagonal that the moment is divided by
  double hessian_radius = 1e-4;      ///< of the difference that estimates it
  std::vector<OptimizerGroup> groups;
  SparsitySettings sparsity;
  bool freeze_routers = false;
  int64_t router_warmup = 0;  ///< first steps in which routers move alone

  bool uses(UpdateRule r) const;  ///< some parameters may have it
};

/// Steps of a run are of one kind or of two, which differ in what they compute and send.
struct StepKinds {
  const char* other = "";    ///< what the second kind is: "warm-up"; empty where there is one kind
  int64_t usual_step = 1;    ///< one of the first kind, counted as updates are, from 1
  int64_t other_step = 0;    ///< of the second
  int64_t first_others = 0;  ///< so many first steps are of the second kind,
  int64_t every = 0;         ///< or the first and every N-th after it
  bool is_other(int64_t step) const { return step <= first_others || (every > 0 && (step - 1) % every == 0); }
  int64_t others(int64_t steps) const;  ///< of the first so many steps
};
StepKinds step_kinds(const OptimizerSettings& settings);

/// What is known of a parameter when its rule is chosen.
struct RuleTarget {
  std::string_view name;
  bool matrix = false;     ///< has two dims
  bool embedding = false;  ///< token or position table, or the projection to the vocabulary
  bool decay = true;       ///< weight decay applies unless a group says so
  bool router = false;     ///< of an MoE model
};

/// A parameter's rule. Muon and 8-bit AdamW are for matrices: what is none, and for Muon what is an
/// embedding, has AdamW.
struct ParameterRule {
  UpdateRule rule = UpdateRule::adamw;
  bool factored = false;  ///< Adafactor: a matrix
  double lr_scale = 1;
  bool decay = true;
  std::optional<double> weight_decay;  ///< in the place of the step's
  bool router = false;                 ///< moves in the warm-up of routers; set where there is one
  bool operator==(const ParameterRule&) const = default;
};
ParameterRule rule_of(const OptimizerSettings& settings, const RuleTarget& target);

/// The moments that a rule keeps for every element, by the names that checkpoints have for them.
std::vector<std::string_view> moment_names(const ParameterRule& rule);
/// The average of weights, which every rule keeps where there is one.
inline constexpr std::string_view kAverage = "ema";
/// Adafactor's rows and columns.
/// 1-bit LAMB's coefficient of a tensor, and its last factor.
inline constexpr std::string_view kCoefficients = "lamb_coeff";
inline constexpr std::string_view kFactorRows = "exp_avg_sq_row", kFactorCols = "exp_avg_sq_col";

}  // namespace ltrain
