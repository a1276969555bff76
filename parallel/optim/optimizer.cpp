#include "parallel/optim/optimizer.h"

#include <fnmatch.h>

#include <algorithm>
#include <string>

namespace ltrain {
namespace {

constexpr std::string_view kNames[kUpdateRules] = {"adamw",       "adam",        "sgd",     "lion",
                                                   "lamb",        "adafactor",   "muon",    "adamw8bit",
                                                   "onebit_adam", "onebit_lamb", "sophia_h"};

}  // namespace

std::string_view update_rule_name(UpdateRule r) {
  return r == UpdateRule::still ? "no optimizer" : kNames[static_cast<int>(r)];
}

std::optional<UpdateRule> update_rule(std::string_view name) {
  for (int i = 0; i < kUpdateRules; ++i)
    if (kNames[i] == name) return static_cast<UpdateRule>(i);
  return std::nullopt;
}

bool OptimizerSettings::uses(UpdateRule r) const {
  return rule == r || std::any_of(groups.begin(), groups.end(), [&](const auto& g) { return g.rule == r; });
}

int64_t StepKinds::others(int64_t steps) const {
  return std::min(steps, first_others) + (every > 0 ? (steps + every - 1) / every : 0);
}

StepKinds step_kinds(const OptimizerSettings& o) {
  if (is_onebit(o.rule)) return {"warm-up", o.freeze_step + 1, 1, o.freeze_step, 0};
  if (o.uses(UpdateRule::sophia_h) && o.hessian_interval > 1)
    return {"estimate of the Hessian", 2, 1, 0, o.hessian_interval};
  return {};
}

bool name_matches(std::string_view pattern, std::string_view name) {
  std::string plain;  // brackets stand for themselves
  for (char c : pattern) plain += c == '[' || c == '\\' ? std::string{'\\', c} : std::string{c};
  return ::fnmatch(plain.c_str(), std::string(name).c_str(), 0) == 0;
}

ParameterRule rule_of(const OptimizerSettings& o, const RuleTarget& t) {
  ParameterRule r;
  if (t.router && o.freeze_routers) {
    r.rule = UpdateRule::still;
    r.decay = false;
    return r;
  }
  r.router = t.router && o.router_warmup > 0;
  r.rule = o.rule;
  r.decay = t.decay;
  bool named = false;
  for (const OptimizerGroup& g : o.groups)
    if (name_matches(g.match, t.name)) {
      named = g.rule.has_value();
      if (g.rule) r.rule = *g.rule;
      r.lr_scale = g.lr_scale;
      r.weight_decay = g.weight_decay;
      if (g.weight_decay) r.decay = *g.weight_decay > 0;
      break;
    }
  if (r.rule == UpdateRule::muon && (!t.matrix || (t.embedding && !named))) r.rule = UpdateRule::adamw;
  if (r.rule == UpdateRule::adamw8bit && !t.matrix) r.rule = UpdateRule::adamw;
  if (r.rule == UpdateRule::muon) r.lr_scale *= o.muon_lr_scale;
  r.factored = r.rule == UpdateRule::adafactor && t.matrix;
  return r;
}

std::vector<std::string_view> moment_names(const ParameterRule& r) {
  switch (r.rule) {
    case UpdateRule::sgd:
    case UpdateRule::muon:
      return {"momentum_buffer"};
    case UpdateRule::still:
      return {};
    case UpdateRule::lion:
      return {"exp_avg"};
    case UpdateRule::sophia_h:
      return {"exp_avg", "hessian"};
    case UpdateRule::onebit_lamb:
      return {"exp_avg", "exp_avg_sq", "exp_avg_sq_fresh"};
    case UpdateRule::adafactor:
      return r.factored ? std::vector<std::string_view>{} : std::vector<std::string_view>{"exp_avg_sq"};
    default:
      return {"exp_avg", "exp_avg_sq"};
  }
}

}  // namespace ltrain
