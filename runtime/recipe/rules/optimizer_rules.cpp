// Rules of the optimizer: requirements on layout and precision.
#include "base/error.h"
#include "parallel/optim/optimizer.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

std::pair<std::string, std::string> not_by_element(const Recipe& r) {
  for (int i = 0; i < kUpdateRules; ++i)
    if (const UpdateRule rule = static_cast<UpdateRule>(i);
        !optimizer_of(rule).by_element() && r.optimizer.uses(rule))
      return {std::string(update_rule_name(rule)),
              r.optimizer.kind == rule ? "optimizer.kind" : "optimizer.groups"};
  return {};
}

void one_kind_of_step_rule(const Recipe& r, const BrokenRule& broken, const std::string& key,
                           const char* why) {
  OptimizerSettings settings;
  static_cast<OptimizerHyperparameters&>(settings) = r.optimizer;
  for (int i = 0; i < kUpdateRules; ++i) {
    const UpdateRule rule = static_cast<UpdateRule>(i);
    if (r.optimizer.uses(rule) && *optimizer_of(rule).step_kinds(settings).other)
      broken("optimizer.kind",
             fmt::format("{} has steps of two kinds{}; nearest valid value: adamw, or {}: 0",
                         update_rule_name(rule), why, key),
             {key});
  }
}

void optimizer_rules(const Recipe& r, const BrokenRule& broken) {
  onebit_rules(r, broken);
  sophia_rules(r, broken);
  const OptimizerKeys& o = r.optimizer;
  const std::string kind = "optimizer.kind", groups = "optimizer.groups";
  const auto where = [&](UpdateRule rule) { return o.kind == rule ? kind : groups; };
  if (o.uses(UpdateRule::muon) && r.parallel.tensor > 1 && r.parallel.tensor_mode != TensorModeChoice::one_d)
    broken(where(UpdateRule::muon),
           fmt::format("muon multiplies whole rows or whole columns of a matrix, and parallel.tensor_mode: "
                       "{} cuts both; nearest valid value: adamw, or parallel.tensor_mode: 1d",
                       r.parallel.tensor_mode),
           {"parallel.tensor_mode", "parallel.tensor"});
  if (o.uses(UpdateRule::adamw8bit) && r.precision == Precision::fp64)
    broken(where(UpdateRule::adamw8bit),
           "has moments of 8 bits for fp32 weights; nearest valid value: adamw, or precision: fp32",
           {"precision"});
  const auto [rule, place] = not_by_element(r);
  if (o.state_dtype != StorageDtype::fp32) {
    if (r.precision == Precision::fp64)
      broken("optimizer.state_dtype", "precision: fp64 has moments of fp64; nearest valid value: fp32",
             {"precision"});
    if (!rule.empty())
      broken(
          "optimizer.state_dtype",
          fmt::format("is for {}, and {} has {}; nearest valid value: fp32", by_element_names(), place, rule),
          {place});
  }
  if (o.grad_dtype != StorageDtype::fp32) {
    if (!rule.empty())
      broken(
          "optimizer.grad_dtype",
          fmt::format("is for {}, and {} has {}; nearest valid value: fp32", by_element_names(), place, rule),
          {place});
    if (r.parallel.grad_reduce_dtype != GradReduceDtype::fp32)
      broken("parallel.grad_reduce_dtype",
             "optimizer.grad_dtype: bf16 sums in bf16 as it is; nearest valid value: fp32",
             {"optimizer.grad_dtype"});
  }
  if (o.master_weights) return;
  if (!rule.empty())
    broken("optimizer.master_weights",
           fmt::format("false is for {}, and {} has {}; nearest valid value: true", by_element_names(), place,
                       rule),
           {place});
  if (r.train.ema_decay > 0)
    broken("train.ema_decay",
           "averages fp32 weights, and optimizer.master_weights: false has none; nearest valid value: 0",
           {"optimizer.master_weights"});
}

void optimizer_notes(const Recipe& r, const RecipeOrigins& origins, std::vector<std::string>& notes) {
  const OptimizerKeys& o = r.optimizer;
  const std::string_view name = update_rule_name(o.kind);
  // A stack of experts has three or four dims.
  RuleTarget experts;
  experts.name = "experts";
  experts.stack = true;
  if (r.model.moe.num_experts > 0 && !optimizer_of(o.kind).takes(experts, false))
    notes.push_back(fmt::format(
        "optimizer.kind: {}: experts are stacks of matrices, which {} does not take: they have adamw, by "
        "optimizer.lr",
        name, name));
  // The second moment averages many steps of a loss that falls fastest at first.
  constexpr int64_t kShort = 1000;
  if (is_onebit(o.kind) && !origins.has("optimizer.freeze_step") && o.freeze_step < kShort)
    notes.push_back(fmt::format(
        "optimizer.freeze_step: {}, a fifth of train.train_steps: the second moment of {} stands still after "
        "so few steps, and runs as short as this often diverge then; watch the loss, give a larger one, or "
        "use optimizer.kind: {}",
        o.freeze_step, name, o.kind == UpdateRule::onebit_adam ? "adamw" : "lamb"));
}

}  // namespace ltrain::recipe
