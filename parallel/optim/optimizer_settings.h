// The optimizers that a recipe can ask for, and what it can set of them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/enum_names.h"
#include "kernels/optimizer/lamb_limits.h"
#include "parallel/optim/sparsity.h"

namespace ltrain {

/// One row an optimizer: the name that recipes have for it, an enumerator of UpdateRule, and
/// NAME_optimizer(), which its file in this folder defines.
#define LT_OPTIMIZERS(ROW) \
  ROW(adamw)               \
  ROW(adam)                \
  ROW(sgd)                 \
  ROW(lion)                \
  ROW(lamb)                \
  ROW(adafactor)           \
  ROW(muon)                \
  ROW(adamw8bit)           \
  ROW(onebit_adam)         \
  ROW(onebit_lamb)         \
  ROW(sophia)

/// `still`: frozen, without gradients; no recipe asks for it by name.
#define LT_ENUMERATOR(name) name,
enum class UpdateRule : uint8_t { LT_OPTIMIZERS(LT_ENUMERATOR) still };
#undef LT_ENUMERATOR
constexpr int kUpdateRules = static_cast<int>(UpdateRule::still);
std::string_view update_rule_name(UpdateRule r);
/// The rule of that name, or nothing.
std::optional<UpdateRule> update_rule(std::string_view name);

enum class MuonScale : uint8_t {
  spectral,         ///< sqrt(max(1, rows / columns))
  match_rms_adamw,  ///< 0.2 sqrt(max(rows, columns)): the size of AdamW's steps
};
LT_ENUM_NAMES(MuonScale, {MuonScale::spectral, "spectral"}, {MuonScale::match_rms_adamw, "match_rms_adamw"});

/// How Sophia estimates the diagonal of the Hessian (parallel/optim/sophia.cpp).
enum class HessianEstimator : uint8_t { gauss_newton, hutchinson };
LT_ENUM_NAMES(HessianEstimator, {HessianEstimator::gauss_newton, "gauss_newton"},
              {HessianEstimator::hutchinson, "hutchinson"});

/// What optimizers have of their own, as keys of recipes name it. What all have is in AdamwArgs.
struct OptimizerHyperparameters {
  double sgd_momentum = 0.9;
  bool sgd_nesterov = false;
  double lion_beta1 = 0.9, lion_beta2 = 0.99;
  double muon_momentum = 0.95;
  int64_t muon_num_ns_steps = 5;  ///< of the Newton-Schulz iteration
  MuonScale muon_scale = MuonScale::spectral;
  double adafactor_decay_rate = 0.8;  ///< of the second moment: 1 - step^-this
  double adafactor_eps = 1e-3;        ///< least root mean square of a parameter that its step is a part of
  double adafactor_clip_threshold = 1.0;  ///< largest root mean square of an update
  int64_t freeze_step = 1;                ///< 1-bit rules: the last step of their warm-up
  LambLimits lamb_limits;                 ///< 1-bit LAMB
  HessianEstimator hessian_estimator = HessianEstimator::gauss_newton;  ///< Sophia
  int64_t hessian_interval = 10;  ///< steps from one estimate to the next, the first step has one
  double sophia_gamma = 0.05;     ///< of the diagonal that the moment is divided by
  double hessian_radius = 1e-4;   ///< hutchinson: of the difference that estimates it
};

/// A group of parameters with settings of its own. The first group whose pattern matches a name counts.
struct OptimizerGroup {
  std::string match;  ///< of whole names; * stands for any characters, ? for one
  std::optional<UpdateRule> rule;
  double lr_scale = 1;                 ///< of the schedule's learning rate
  std::optional<double> weight_decay;  ///< also of norms and biases, when given
};

/// What stays the same from step to step. AdamwArgs has what may change.
struct OptimizerSettings : OptimizerHyperparameters {
  UpdateRule rule = UpdateRule::adamw;
  double muon_lr_scale = 1;  ///< learning rate of Muon's matrices over that of the others
  std::vector<OptimizerGroup> groups;
  std::vector<std::string>
      frozen;  ///< patterns of whole names: parameters without gradient, state and update
  SparsitySettings sparsity;
  bool freeze_routers = false;
  int64_t router_warmup = 0;  ///< first steps in which routers move alone

  bool uses(UpdateRule r) const;  ///< some parameters may have it
};

}  // namespace ltrain
