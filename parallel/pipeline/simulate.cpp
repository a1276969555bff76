#include "parallel/pipeline/simulate.h"

#include <algorithm>

#include "base/error.h"
#include "parallel/pipeline/dependencies.h"
#include "parallel/pipeline/simulate_checked.h"

namespace ltrain::pipeline {
namespace {

/// Entry of `c` by rank and position; 0 if missing.
double at_position(const std::vector<std::vector<double>>& c, int rank, int at) {
  const size_t r = static_cast<size_t>(rank);
  return c.empty() || c[r].empty() ? 0 : c[r][static_cast<size_t>(at)];
}

double seconds(const StageCosts& c, const Action& a) {
  switch (a.kind) {
    case ActionKind::forward:
      return c.forward[a.stage];
    case ActionKind::backward:
      return c.input[a.stage] + c.weight[a.stage];
    case ActionKind::backward_input:
      return c.input[a.stage];
    case ActionKind::backward_weight:
      return c.weight[a.stage];
  }
  return 0;
}

void check_costs(const Schedule& s, const StageCosts& c) {
  const size_t stages = s.rank_of_stage.size(), ranks = static_cast<size_t>(s.ranks);
  const auto good = [](const std::vector<double>& v, size_t size, bool may_be_empty) {
    return (v.size() == size || (may_be_empty && v.empty())) &&
           std::all_of(v.begin(), v.end(), [](double x) { return x >= 0 && x < 1e300; });
  };
  LT_CHECK(good(c.forward, stages, false) && good(c.input, stages, false) && good(c.weight, stages, false) &&
               good(c.activation, stages, true) && good(c.transfer, ranks * ranks, true) &&
               good(c.optimizer, ranks, true) && good(c.hidden, stages * stages, true),
           "expected non-negative costs for {} stages on {} ranks, got a list of another length or a "
           "negative cost",
           stages, ranks);
  const auto check_actions = [&](const std::vector<std::vector<double>>& of, const char* what) {
    LT_CHECK(of.empty() || of.size() == ranks, "{}: expected lists of {} ranks, got {}", what, ranks,
             of.size());
    for (size_t r = 0; r < of.size(); ++r)
      LT_CHECK(good(of[r], s.order[r].size(), true),
               "{} of rank {}: expected non-negative costs of {} actions, got {} numbers", what, r,
               s.order[r].size(), of[r].size());
  };
  check_actions(c.least, "least costs");
  check_actions(c.pairs, "costs of pairs");
  check_actions(c.earliest_end, "earliest ends");
}

}  // namespace

StageCosts StageCosts::uniform(int stages, double forward, double input, double weight) {
  const size_t n = static_cast<size_t>(stages);
  StageCosts c;
  c.forward.assign(n, forward);
  c.input.assign(n, input);
  c.weight.assign(n, weight);
  return c;
}

double seconds_at(const StageCosts& c, const std::vector<Action>& order, size_t at) {
  const Action& a = order[at];
  if (!a.with_next) return seconds(c, a);
  const Action& b = order[at + 1];
  const double one = seconds(c, a), other = seconds(c, b);
  if (c.hidden.empty()) return one + other;
  const bool first = a.kind == ActionKind::forward;
  const size_t forward = static_cast<size_t>((first ? a : b).stage),
               backward = static_cast<size_t>((first ? b : a).stage);
  return std::max({one, other, one + other - c.hidden[forward * c.forward.size() + backward]});
}

Timing simulate(const Schedule& s, const StageCosts& costs) {
  check(s, s.name);
  check_costs(s, costs);
  return simulate_checked(s, costs);
}

Timing simulate_checked(const Schedule& s, const StageCosts& costs) {
  const size_t ranks = static_cast<size_t>(s.ranks);
  Timing t;
  t.start.resize(ranks);
  t.end.resize(ranks);
  t.busy.assign(ranks, 0);
  t.waited.assign(ranks, 0);
  t.peak_activations.assign(ranks, 0);
  t.peak_kept.assign(ranks, 0);
  std::vector<int> kept(ranks);
  std::vector<double> kept_size(ranks), clock(ranks), link(ranks * ranks);
  // Arrival time of the tensor that an action sends to another rank, by rank and position; its end if nothing
  // is sent.
  std::vector<std::vector<double>> arrives(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    t.start[r].resize(s.order[r].size());
    t.end[r].resize(s.order[r].size());
    arrives[r].resize(s.order[r].size());
  }

  const Needs needs(s);
  const auto begin = [&](int rank, int at) {  // an action, or both of a pair
    const auto& order = s.order[rank];
    const int n = actions_at(order, static_cast<size_t>(at));
    double start = clock[rank], least = 0, earliest = 0;
    for (int i = at; i < at + n; ++i) {
      if (const Place* from = needs.of(rank, i)) start = std::max(start, arrives[from->rank][from->position]);
      least += at_position(costs.least, rank, i);
      earliest = std::max(earliest, at_position(costs.earliest_end, rank, i));
    }
    double took = std::max(least, seconds_at(costs, order, static_cast<size_t>(at)));
    if (const double known = at_position(costs.pairs, rank, at); n > 1 && known > 0) took = known;
    const double end = std::max(start + took, earliest);
    for (int i = at; i < at + n; ++i) t.start[rank][i] = start, t.end[rank][i] = end;
    t.busy[rank] += end - start;
    t.waited[rank] += end - start - took;
    clock[rank] = end;
  };
  run_in_order(s, needs, [&](const Action& a, int rank, int at) {
    if (!ends_pair(s.order[rank], static_cast<size_t>(at))) begin(rank, at);
    const double end = t.end[rank][at];
    const bool forward = a.kind == ActionKind::forward;
    const int next = forward ? a.stage + 1 : a.stage - 1;
    arrives[rank][at] = end;
    if ((forward || a.gives_gradient()) && next >= 0 && next < s.stages() && !costs.transfer.empty() &&
        s.rank_of_stage[next] != rank) {
      const size_t l = static_cast<size_t>(rank) * ranks + s.rank_of_stage[next];
      link[l] = std::max(link[l], end) + costs.transfer[l];
      arrives[rank][at] = link[l];
    }

    const double size = costs.activation.empty() ? 1 : costs.activation[a.stage];
    if (forward) {
      kept_size[rank] += size, ++kept[rank];
    } else if (a.kind != ActionKind::backward_input) {
      // If the backward of a pair comes first, the forward's activations count beside it.
      const Action* beside = a.with_next ? &a + 1 : nullptr;
      const double more = !beside ? 0 : costs.activation.empty() ? 1 : costs.activation[beside->stage];
      t.peak_kept[rank] = std::max(t.peak_kept[rank], kept_size[rank] + more);
      t.peak_activations[rank] = std::max(t.peak_activations[rank], kept[rank] + (beside != nullptr));
      kept_size[rank] -= size, --kept[rank];
    }
    t.peak_kept[rank] = std::max(t.peak_kept[rank], kept_size[rank]);
    t.peak_activations[rank] = std::max(t.peak_activations[rank], kept[rank]);
  });

  for (size_t r = 0; r < ranks; ++r) t.makespan = std::max(t.makespan, clock[r]);
  double idle = 0, tail = 0;
  for (size_t r = 0; r < ranks; ++r) {
    t.bubble.push_back(t.makespan - t.busy[r]);
    t.inner_bubble.push_back(t.end[r].back() - t.start[r].front() - t.busy[r]);
    idle += t.bubble[r];
    if (!costs.optimizer.empty()) tail = std::max(tail, costs.optimizer[r]);
  }
  t.step = t.makespan + tail;
  if (t.makespan > 0) t.bubble_share = idle / (static_cast<double>(ranks) * t.makespan);
  return t;
}

}  // namespace ltrain::pipeline
