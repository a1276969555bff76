#include "parallel/pipeline/fill_weights.h"

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "parallel/pipeline/dependencies.h"
#include "parallel/pipeline/simulate_checked.h"

namespace ltrain::pipeline {
namespace {

/// Clocks of the ranks while an order is made.
class Filler {
 public:
  Filler(const Schedule& s, const StageCosts& c, double limit, double share)
      : costs_(c),
        limit_(limit),
        share_(share),
        ranks_(static_cast<size_t>(s.ranks)),
        clock_(ranks_),
        link_(ranks_ * ranks_),
        kept_(ranks_),
        owed_(ranks_),
        made_(s) {
    for (auto& order : made_.order) order.clear();
  }

  /// Runs the F, B, I or pair that begins at `at` of a rank's order, with its input available at `ready`.
  void begin(const std::vector<Action>& order, size_t at, int rank, double ready) {
    double more = 0;  // activations that its forwards add
    for (size_t i = at; i < at + static_cast<size_t>(actions_at(order, at)); ++i)
      if (order[i].kind == ActionKind::forward) more += size(order[i].stage);
    while (!owed_[rank].empty() && (clock_[rank] + share_ * weight(rank) <= ready * (1 + 1e-9) ||
                                    (more > 0 && kept_[rank] + more > limit_ * (1 + 1e-9))))
      run_weight(rank);
    clock_[rank] = std::max(clock_[rank], ready) + seconds_at(costs_, order, at);
  }

  /// Ends a started action; returns the time when its output is at the next stage's rank.
  double end(const Action& a, int rank) {
    made_.order[rank].push_back(a);
    if (a.kind == ActionKind::forward) kept_[rank] += size(a.stage);
    if (a.kind == ActionKind::backward) kept_[rank] -= size(a.stage);
    if (a.kind == ActionKind::backward_input)
      owed_[rank].push_back({ActionKind::backward_weight, a.stage, a.micro});
    const int next = a.kind == ActionKind::forward ? a.stage + 1 : a.stage - 1;
    if (next < 0 || next >= made_.stages() || made_.rank_of_stage[next] == rank || costs_.transfer.empty())
      return clock_[rank];
    double& link = link_[static_cast<size_t>(rank) * ranks_ + made_.rank_of_stage[next]];
    link = std::max(link, clock_[rank]) + costs_.transfer[&link - link_.data()];
    return link;
  }

  Schedule take() {
    for (size_t r = 0; r < ranks_; ++r)
      while (!owed_[r].empty()) run_weight(static_cast<int>(r));
    return std::move(made_);
  }

 private:
  double size(int stage) const { return costs_.activation.empty() ? 1 : costs_.activation[stage]; }
  double weight(int rank) const { return costs_.weight[owed_[rank].front().stage]; }
  void run_weight(int rank) {
    clock_[rank] += weight(rank);
    kept_[rank] -= size(owed_[rank].front().stage);
    made_.order[rank].push_back(owed_[rank].front());
    owed_[rank].pop_front();
  }

  const StageCosts& costs_;
  double limit_;  ///< largest peak of a rank
  double share_;  ///< share of a W's time that a wait must have for the W to run in it
  size_t ranks_;
  std::vector<double> clock_, link_;
  std::vector<double> kept_;
  std::vector<std::deque<Action>> owed_;  ///< W actions after their I, oldest first
  Schedule made_;
};

}  // namespace

Schedule fill_with_weights(const Schedule& schedule, const StageCosts& costs) {
  Schedule bare = schedule;  // without W: only the order of the others is kept
  size_t taken = 0;
  for (auto& order : bare.order)
    taken += std::erase_if(order, [](const Action& a) { return a.kind == ActionKind::backward_weight; });
  if (taken == 0) return schedule;
  const Timing given = simulate(schedule, costs);
  const Needs needs(bare);
  const double limit = *std::max_element(given.peak_kept.begin(), given.peak_kept.end());
  const Schedule* best = &schedule;
  Schedule kept;
  double least = given.makespan;
  for (double share : {1.0, 0.75, 0.5, 0.25}) {
    Filler filler(bare, costs, limit, share);
    std::vector<std::vector<double>> arrives(bare.order.size());
    for (size_t r = 0; r < bare.order.size(); ++r) arrives[r].resize(bare.order[r].size());
    run_in_order(bare, needs, [&](const Action& a, int rank, int at) {
      const auto& order = bare.order[rank];
      if (const size_t from = static_cast<size_t>(at); !ends_pair(order, from)) {
        double ready = 0;
        for (size_t i = from; i < from + static_cast<size_t>(actions_at(order, from)); ++i)
          if (const Place* giver = needs.of(rank, static_cast<int>(i)))
            ready = std::max(ready, arrives[giver->rank][giver->position]);
        filler.begin(order, from, rank, ready);
      }
      arrives[rank][at] = filler.end(a, rank);
    });
    Schedule filled = filler.take();
    const double makespan = simulate_checked(filled, costs).makespan;
    if (makespan >= least * (1 - 1e-9)) continue;
    least = makespan;
    kept = std::move(filled);
    best = &kept;
  }
  return *best;
}

}  // namespace ltrain::pipeline
