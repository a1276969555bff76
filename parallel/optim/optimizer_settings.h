// Optimizers and their settings in recipes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_names.h"
#include "kernels/optimizer/lamb_limits.h"
#include "parallel/optim/diloco_settings.h"
#include "parallel/optim/quantization.h"
#include "parallel/optim/sparsity.h"

namespace ltrain {

/// One row for each optimizer: its name in recipes, an enumerator of UpdateRule, and the prefix of
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

/// `frozen`: without gradients; not a name in recipes.
#define LT_ENUMERATOR(name) name,
enum class UpdateRule : uint8_t { LT_OPTIMIZERS(LT_ENUMERATOR) frozen };
#undef LT_ENUMERATOR
constexpr int kUpdateRules = static_cast<int>(UpdateRule::frozen);
std::string_view update_rule_name(UpdateRule r);
/// Rule with that name, or nothing.
std::optional<UpdateRule> update_rule(std::string_view name);

enum class MuonScale : uint8_t {
  spectral,         ///< sqrt(max(1, rows / columns))
  match_rms_adamw,  ///< 0.2 sqrt(max(rows, columns)): the size of AdamW's steps
};
LT_ENUM_NAMES(MuonScale, {MuonScale::spectral, "spectral"}, {MuonScale::match_rms_adamw, "match_rms_adamw"});

/// Sophia's estimate of the diagonal of the Hessian (parallel/optim/sophia.cpp).
enum class HessianEstimator : uint8_t { gauss_newton, hutchinson };
LT_ENUM_NAMES(HessianEstimator, {HessianEstimator::gauss_newton, "gauss_newton"},
              {HessianEstimator::hutchinson, "hutchinson"});

/// Optimizer-specific settings, named like the keys of recipes. Common ones are in OptimizerStep.
struct OptimizerHyperparameters {
  double sgd_momentum = 0.9;
  bool sgd_nesterov = false;
  double lion_beta1 = 0.9, lion_beta2 = 0.99;
  double muon_momentum = 0.95;
  int64_t muon_num_ns_steps = 5;  ///< steps of the Newton-Schulz iteration
  MuonScale muon_scale = MuonScale::spectral;
  double adafactor_decay_rate = 0.8;  ///< decay of the second moment: 1 - step^-rate
  double adafactor_eps = 1e-3;  ///< lower limit of the root mean square of a parameter that scales its step
  double adafactor_clip_threshold = 1.0;  ///< largest root mean square of an update
  int64_t freeze_step = 1;                ///< 1-bit rules: last step of their warm-up
  LambLimits lamb_limits;                 ///< 1-bit LAMB
  HessianEstimator hessian_estimator = HessianEstimator::gauss_newton;  ///< Sophia
  int64_t hessian_interval = 10;  ///< steps from one estimate to the next; the first step has one
  double sophia_gamma = 0.05;     ///< factor of the diagonal that divides the moment
  double hessian_radius = 1e-4;   ///< hutchinson: radius of the finite difference
};

/// Settings of a group of parameters. The first group with a matching pattern applies.
struct OptimizerGroup {
  std::string match;  ///< pattern of full names; * stands for any characters, ? for one
  std::optional<UpdateRule> rule;
  double lr_scale = 1;                 ///< factor of the schedule's learning rate
  std::optional<double> weight_decay;  ///< if given, also applies to norms and biases
};

/// Settings that do not change from step to step. OptimizerStep has the others.
struct OptimizerSettings : OptimizerHyperparameters {
  UpdateRule rule = UpdateRule::adamw;
  double muon_lr_scale = 1;  ///< learning rate of Muon's matrices relative to the others
  std::vector<OptimizerGroup> groups;
  std::vector<std::string>
      frozen;  ///< patterns of whole names: parameters without gradient, state and update
  std::vector<std::string> trained;  ///< patterns: if there are any, all other parameters are frozen, too
  SparsitySettings sparsity;
  DilocoSettings diloco;
  QuantizationSettings quantization;
  bool freeze_routers = false;
  int64_t router_warmup = 0;  ///< first steps in which only routers move

  bool uses(UpdateRule r) const;  ///< true if some parameters may have it
};

}  // namespace ltrain
