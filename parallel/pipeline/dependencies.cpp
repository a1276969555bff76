#include "parallel/pipeline/dependencies.h"

#include <algorithm>

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

std::optional<Action> needs(const Schedule& s, const Action& a) {
  if (a.kind == ActionKind::forward && a.stage > 0) return Action{ActionKind::forward, a.stage - 1, a.micro};
  if (a.gives_gradient() && a.stage + 1 < s.stages())
    return Action{ActionKind::backward, a.stage + 1, a.micro};
  return std::nullopt;
}

Place place_of(const Schedule& s, const Positions& p, const Action& needed) {
  return {s.rank_of_stage[needed.stage], needed.kind == ActionKind::forward
                                             ? p.forward(needed.stage, needed.micro)
                                             : p.gradient(needed.stage, needed.micro)};
}

std::optional<Place> waits_for(const Schedule& s, const Positions& p, int rank,
                               const std::vector<int>& done) {
  const auto& order = s.order[rank];
  const size_t at = static_cast<size_t>(done[rank]), n = static_cast<size_t>(actions_at(order, at));
  for (size_t i = at; i < std::min(at + n, order.size()); ++i)
    if (const auto needed = needs(s, order[i])) {
      const Place from = place_of(s, p, *needed);
      if (from.position < 0 || from.position >= done[from.rank]) return from;
    }
  return std::nullopt;
}

std::vector<int> run_in_order(const Schedule& s, const Positions& p,
                              const std::function<void(const Action&, int, int)>& visit) {
  std::vector<int> done(s.order.size());
  // A rank runs until it must wait; whoever gives what it waits for wakes it.
  std::vector<std::vector<int>> waiting(s.order.size());  // by the rank that is waited for
  std::vector<int> ready;
  for (int r = s.ranks - 1; r >= 0; --r) ready.push_back(r);
  while (!ready.empty()) {
    const int rank = ready.back();
    ready.pop_back();
    const int before = done[rank];
    while (done[rank] < static_cast<int>(s.order[rank].size())) {
      if (const auto from = waits_for(s, p, rank, done)) {
        if (from->rank != rank) waiting[from->rank].push_back(rank);
        break;
      }
      const auto& order = s.order[rank];
      for (int n = actions_at(order, static_cast<size_t>(done[rank])); n > 0; --n) {
        visit(order[done[rank]], rank, done[rank]);
        ++done[rank];
      }
    }
    if (done[rank] == before) continue;
    // Whoever waited for this rank looks again: it may now have gone far enough.
    for (int r : waiting[rank]) ready.push_back(r);
    waiting[rank].clear();
  }
  return done;
}

}  // namespace ltrain::pipeline
