#include "parallel/optim/optimizer.h"

#include <algorithm>

namespace ltrain {

#define LT_DECLARE(name) const Optimizer& name##_optimizer();
LT_OPTIMIZERS(LT_DECLARE)
#undef LT_DECLARE

namespace {

#define LT_NAME(name) #name,
constexpr std::string_view kNames[] = {LT_OPTIMIZERS(LT_NAME)};
#undef LT_NAME

class Frozen final : public Optimizer {
 public:
  std::vector<std::string_view> element_states(const ParameterRule&) const override { return {}; }
};

UpdateRule rule_at(int i) { return static_cast<UpdateRule>(i); }

}  // namespace

std::string_view update_rule_name(UpdateRule r) {
  return r == UpdateRule::frozen ? "no optimizer" : kNames[static_cast<int>(r)];
}

std::optional<UpdateRule> update_rule(std::string_view name) {
  for (int i = 0; i < kUpdateRules; ++i)
    if (kNames[i] == name) return rule_at(i);
  return std::nullopt;
}

const Optimizer& optimizer_of(UpdateRule r) {
  static const Frozen frozen;
  switch (r) {
#define LT_CASE(name)    \
  case UpdateRule::name: \
    return name##_optimizer();
    LT_OPTIMIZERS(LT_CASE)
#undef LT_CASE
    case UpdateRule::frozen:
      break;
  }
  return frozen;
}

Elements part_of(const Elements& e, int64_t at, int64_t n) {
  const auto cut = [&](const Tensor& t) { return t.defined() ? t.flat(at, {n}) : t; };
  Elements out{.master = cut(e.master), .low = cut(e.low), .grad = cut(e.grad), .states = {}};
  for (const Tensor& t : e.states) out.states.push_back(cut(t));
  return out;
}

bool OptimizerSettings::uses(UpdateRule r) const {
  return rule == r || std::any_of(groups.begin(), groups.end(), [&](const auto& g) { return g.rule == r; });
}

std::vector<int64_t> StepKinds::all() const {
  std::vector<int64_t> steps{usual_step};
  steps.insert(steps.end(), other_steps.begin(), other_steps.end());
  return steps;
}

size_t StepKinds::kind_of(int64_t step) const {
  if (step <= first_others) return 1;
  for (size_t i = 0; every > 0 && i < other_steps.size(); ++i)
    if ((step - other_steps[i]) % every == 0) return i + 1;
  return 0;
}

int64_t StepKinds::count(size_t kind, int64_t steps) const {
  if (every == 0) return std::min(steps, first_others);
  return (steps + every - other_steps[kind - 1]) / every;
}

int64_t StepKinds::others(int64_t steps) const {
  int64_t n = 0;
  for (size_t i = 0; i < other_steps.size(); ++i) n += count(i + 1, steps);
  return n;
}

/// Steps of a round with a difference or an outer update are of kinds of their own, since fragments differ.
static StepKinds diloco_kinds(const DilocoSettings& d) {
  StepKinds kinds{.other = "synchronization of sites", .usual_step = 0, .every = d.inner_steps};
  for (int64_t step = 1; step <= d.inner_steps; ++step)
    if (d.sends_after(step) >= 0 || d.updates_after(step) >= 0)
      kinds.other_steps.push_back(step);
    else if (kinds.usual_step == 0)
      kinds.usual_step = step;
  if (kinds.usual_step > 0) return kinds;
  // Every step synchronizes: the first is the usual one.
  kinds.usual_step = kinds.other_steps.front();
  kinds.other_steps.erase(kinds.other_steps.begin());
  return kinds.other_steps.empty() ? StepKinds() : kinds;
}

StepKinds step_kinds(const OptimizerSettings& o) {
  if (o.diloco.on()) return diloco_kinds(o.diloco);
  for (int i = 0; i < kUpdateRules; ++i)
    if (o.uses(rule_at(i)))
      if (const StepKinds kinds = optimizer_of(rule_at(i)).step_kinds(o); *kinds.other) return kinds;
  return {};
}

std::string by_element_names() {
  std::string names, last;
  for (int i = 0; i < kUpdateRules; ++i) {
    if (!optimizer_of(rule_at(i)).by_element()) continue;
    if (!last.empty()) names += (names.empty() ? "" : ", ") + last;
    last = kNames[i];
  }
  return names + " and " + last;
}

std::vector<std::string_view> all_state_names() {
  std::vector<std::string_view> all;
  const auto add = [&](const std::vector<std::string_view>& names) {
    for (std::string_view name : names)
      if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
  };
  for (int i = 0; i < kUpdateRules; ++i)
    for (const bool matrix : {false, true}) {
      const Optimizer& optimizer = optimizer_of(rule_at(i));
      RuleTarget target;
      target.matrix = matrix;
      ParameterRule rule;
      rule.rule = rule_at(i);
      optimizer.adjust(rule, target, {});
      add(optimizer.element_states(rule));
      add(optimizer.tensor_states(rule));
    }
  return all;
}

}  // namespace ltrain
