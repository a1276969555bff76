#include "parallel/pipeline/fill_weights.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/error.h"
#include "parallel/pipeline/dependencies.h"
#include "parallel/pipeline/simulate_checked.h"

namespace ltrain::pipeline {
namespace {

/// Clocks of the ranks while an order is made.
class Filler {
 public:
  /// `work`: seconds of all actions of each rank. `most`: an order that takes longer is given up.
  Filler(const Schedule& bare, const StageCosts& c, double limit, double share, std::vector<double> work,
         double most)
      : costs_(c),
        rank_of_stage_(bare.rank_of_stage),
        limit_(limit),
        share_(share),
        most_(most),
        ranks_(static_cast<size_t>(bare.ranks)),
        clock_(ranks_),
        left_(std::move(work)),
        link_(ranks_ * ranks_),
        kept_(ranks_),
        owed_(ranks_),
        made_(ranks_) {}

  /// Runs the F, B, I or pair that begins at `at` of a rank's order, with its input available at `ready`.
  void begin(const std::vector<Action>& order, size_t at, int rank, double ready) {
    double more = 0;  // activations that its forwards add
    for (size_t i = at; i < at + static_cast<size_t>(actions_at(order, at)); ++i)
      if (order[i].kind == ActionKind::forward) more += size(order[i].stage);
    while (!owed_[rank].empty() && (clock_[rank] + share_ * weight(rank) <= ready * (1 + 1e-9) ||
                                    (more > 0 && kept_[rank] + more > limit_ * (1 + 1e-9))))
      run_weight(rank);
    const double took = seconds_at(costs_, order, at);
    clock_[rank] = std::max(clock_[rank], ready) + took;
    left_[rank] -= took;
    given_up_ = given_up_ || clock_[rank] + left_[rank] > most_;
  }

  /// Ends a started action; returns the time when its output is at the next stage's rank.
  double end(const Action& a, int rank) {
    made_[rank].push_back(a);
    if (a.kind == ActionKind::forward) kept_[rank] += size(a.stage);
    if (a.kind == ActionKind::backward) kept_[rank] -= size(a.stage);
    if (a.kind == ActionKind::backward_input)
      owed_[rank].push_back({ActionKind::backward_weight, a.stage, a.micro});
    const int next = a.kind == ActionKind::forward ? a.stage + 1 : a.stage - 1;
    if (next < 0 || next >= static_cast<int>(rank_of_stage_.size()) || rank_of_stage_[next] == rank ||
        costs_.transfer.empty())
      return clock_[rank];
    double& link = link_[static_cast<size_t>(rank) * ranks_ + rank_of_stage_[next]];
    link = std::max(link, clock_[rank]) + costs_.transfer[&link - link_.data()];
    return link;
  }

  bool given_up() const { return given_up_; }

  /// Runs what is left. Returns the time of the order, which is that of simulate().
  double finish() {
    for (size_t r = 0; r < ranks_; ++r)
      while (!owed_[r].empty()) run_weight(static_cast<int>(r));
    return *std::max_element(clock_.begin(), clock_.end());
  }
  std::vector<std::vector<Action>> take() { return std::move(made_); }

 private:
  double size(int stage) const { return costs_.activation.empty() ? 1 : costs_.activation[stage]; }
  double weight(int rank) const { return costs_.weight[owed_[rank].front().stage]; }
  void run_weight(int rank) {
    clock_[rank] += weight(rank);
    left_[rank] -= weight(rank);
    kept_[rank] -= size(owed_[rank].front().stage);
    made_[rank].push_back(owed_[rank].front());
    owed_[rank].pop_front();
  }

  const StageCosts& costs_;
  const std::vector<int>& rank_of_stage_;
  double limit_;  ///< largest peak of a rank
  double share_;  ///< share of a W's time that a wait must have for the W to run in it
  double most_;
  size_t ranks_;
  std::vector<double> clock_, left_, link_;
  std::vector<double> kept_;
  std::vector<std::deque<Action>> owed_;  ///< W actions after their I, oldest first
  std::vector<std::vector<Action>> made_;
  bool given_up_ = false;
};

/// Seconds of all actions of each rank.
std::vector<double> work_of(const Schedule& s, const StageCosts& costs) {
  std::vector<double> work;
  for (const auto& order : s.order) {
    double seconds = 0;
    for (size_t i = 0; i < order.size(); ++i)
      if (!ends_pair(order, i)) seconds += seconds_at(costs, order, i);
    work.push_back(seconds);
  }
  return work;
}

}  // namespace

Schedule fill_with_weights(const Schedule& schedule, const StageCosts& costs) {
  Schedule bare = schedule;  // without W: only the order of the others is kept
  size_t taken = 0;
  for (auto& order : bare.order)
    taken += std::erase_if(order, [](const Action& a) { return a.kind == ActionKind::backward_weight; });
  if (taken == 0) return schedule;
  const Timing given = simulate_checked(schedule, costs);
  const Needs needs(bare);
  const double limit = *std::max_element(given.peak_kept.begin(), given.peak_kept.end());
  const std::vector<double> work = work_of(schedule, costs);
  std::vector<std::vector<double>> arrives(bare.order.size());
  for (size_t r = 0; r < bare.order.size(); ++r) arrives[r].resize(bare.order[r].size());
  Schedule best = schedule;
  double least = given.makespan;
  for (double share : {1.0, 0.75, 0.5, 0.25}) {
    Filler filler(bare, costs, limit, share, work, least);
    run_in_order(bare, needs, [&](const Action& a, int rank, int at) {
      if (filler.given_up()) return;
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
    if (filler.given_up()) continue;
    const double makespan = filler.finish();
    if (makespan >= least * (1 - 1e-9)) continue;
    least = makespan;
    best.order = filler.take();
  }
  return best;
}

}  // namespace ltrain::pipeline
