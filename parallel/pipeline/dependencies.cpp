#include "parallel/pipeline/dependencies.h"

namespace ltrain::pipeline {

Positions::Positions(const Schedule& s) : micros_(static_cast<size_t>(s.micros)) {
  const size_t n = static_cast<size_t>(s.stages()) * micros_;
  forward_.assign(n, -1);
  gradient_.assign(n, -1);
  last_.assign(n, -1);
  for (const auto& order : s.order)
    for (size_t i = 0; i < order.size(); ++i) {
      const Action& a = order[i];
      const size_t at = index(a.stage, a.micro);
      const int position = static_cast<int>(i);
      if (a.kind == ActionKind::forward) forward_[at] = position;
      if (a.gives_gradient()) gradient_[at] = position;
      if (a.kind == ActionKind::backward || a.kind == ActionKind::backward_weight) last_[at] = position;
    }
}

namespace {

Place needed_by(const Schedule& s, const Positions& p, const Action& a) {
  if (a.kind == ActionKind::forward && a.stage > 0)
    return {s.rank_of_stage[a.stage - 1], p.forward(a.stage - 1, a.micro)};
  if (a.gives_gradient() && a.stage + 1 < s.stages())
    return {s.rank_of_stage[a.stage + 1], p.gradient(a.stage + 1, a.micro)};
  return {-1, -1};
}

}  // namespace

Needs::Needs(const Schedule& s, const Positions& p) {
  size_t actions = 0;
  for (const auto& order : s.order) {
    first_.push_back(actions);
    actions += order.size();
  }
  all_.reserve(actions);
  for (const auto& order : s.order)
    for (const Action& a : order) all_.push_back(needed_by(s, p, a));
}

}  // namespace ltrain::pipeline
