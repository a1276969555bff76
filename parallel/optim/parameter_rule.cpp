#include "parallel/optim/parameter_rule.h"

#include <algorithm>

#include "parallel/optim/optimizer.h"

namespace ltrain {

bool name_matches(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = std::string_view::npos, from = 0;
  while (n < name.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n]) && pattern[p] != '*') {
      ++p, ++n;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

ParameterRule rule_of(const OptimizerSettings& o, const RuleTarget& t) {
  ParameterRule r;
  const auto named_in = [&](const std::vector<std::string>& patterns) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const std::string& pattern) { return name_matches(pattern, t.name); });
  };
  if ((t.router && o.freeze_routers) || named_in(o.frozen) || (!o.trained.empty() && !named_in(o.trained))) {
    r.rule = UpdateRule::frozen;
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
  if (!optimizer_of(r.rule).takes(t, named)) r.rule = UpdateRule::adamw;
  optimizer_of(r.rule).adjust(r, t, o);
  return r;
}

}  // namespace ltrain
