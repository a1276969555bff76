#include "parallel/pipeline/lowering.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "parallel/pipeline/dependencies.h"

namespace ltrain::pipeline {
namespace {

/// A transfer on one link, in the order of the sender.
struct Transfer {
  TensorId tensor;
  int peer = 0;
  int made = 0;  ///< position of the compute on the sender
  int used = 0;  ///< position of the compute on the receiver
};

/// Transfers that `from` sends, in its order.
std::vector<Transfer> transfers_of(const Schedule& s, const Positions& p, int from) {
  std::vector<Transfer> out;
  for (size_t i = 0; i < s.order[from].size(); ++i) {
    const Action& a = s.order[from][i];
    const TensorId t = given_by(s, a);
    if (t.stage < 0) continue;
    const int to = s.rank_of_stage[t.stage];
    if (to == from) continue;
    out.push_back({t, to, static_cast<int>(i),
                   t.gradient ? p.gradient(t.stage, t.micro) : p.forward(t.stage, t.micro)});
  }
  return out;
}

/// Indexed by rank and action: number of actions of each rank that have certainly ended once this action has
/// (a vector clock: Fidge, Mattern 1988). Row i of a rank is the state after its position i.
std::vector<std::vector<int>> known_after(const Schedule& s, const Positions& p) {
  const Needs needs(s, p);
  const size_t ranks = static_cast<size_t>(s.ranks);
  std::vector<std::vector<int>> rows(ranks);
  for (size_t r = 0; r < ranks; ++r) rows[r].assign(s.order[r].size() * ranks, 0);
  run_in_order(s, needs, [&](const Action&, int r, int at) {
    int* row = &rows[r][static_cast<size_t>(at) * ranks];
    if (at > 0) std::copy(row - ranks, row, row);
    if (ends_pair(s.order[r], static_cast<size_t>(at))) return;  // same as after its first action
    const int n = actions_at(s.order[r], static_cast<size_t>(at));
    for (int i = at; i < at + n; ++i)
      if (const Place* from = needs.of(r, i)) {
        const int* other = &rows[from->rank][static_cast<size_t>(from->position) * ranks];
        for (size_t q = 0; q < ranks; ++q) row[q] = std::max(row[q], other[q]);
      }
    row[r] = at + n;
  });
  return rows;
}

/// Input of the programs of all ranks.
struct Whole {
  const Schedule& schedule;
  std::vector<std::vector<Transfer>> sent;  ///< indexed by rank
  std::vector<std::vector<int>> known;

  explicit Whole(const Schedule& s) : schedule(s) {
    check(s, s.name);
    const Positions positions(s);
    for (int rank = 0; rank < s.ranks; ++rank) sent.push_back(transfers_of(s, positions, rank));
    known = known_after(s, positions);
  }
};

/// Position where the compute begins that is `before` computes before the one of position `at`, or the first
/// one.
int compute_before(const std::vector<Action>& order, int at, int before) {
  const auto begin = [&](int i) { return ends_pair(order, static_cast<size_t>(i)) ? i - 1 : i; };
  for (at = begin(at); before > 0 && at > 0; --before) at = begin(at - 1);
  return at;
}

/// Receives of `rank`, by the position of the compute that they precede.
std::vector<std::vector<Transfer>> receives_of(const Whole& whole, int rank, int lookahead) {
  const Schedule& s = whole.schedule;
  std::vector<std::vector<Transfer>> before(s.order[rank].size());
  std::vector<std::pair<int, Transfer>> all;  // position, transfer
  for (int from = 0; from < s.ranks; ++from) {
    if (from == rank) continue;
    std::vector<Transfer> link;
    for (const Transfer& t : whole.sent[from])
      if (t.peer == rank) link.push_back(t);
    // From last to first: an earlier transfer of the link is posted no later than a later one.
    int post = static_cast<int>(s.order[rank].size());
    for (size_t i = link.size(); i-- > 0;) {
      post = std::min(post, compute_before(s.order[rank], link[i].used, lookahead));
      link[i].peer = from;
      all.emplace_back(post, link[i]);
    }
  }
  // Within a link in its order; across links by use.
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first < b.first;
    if (a.second.peer == b.second.peer) return a.second.made < b.second.made;
    return a.second.peer < b.second.peer;
  });
  for (const auto& [position, t] : all) before[position].push_back(t);
  return before;
}

std::vector<PipelineStep> program_of(const Whole& whole, int rank, int lookahead) {
  const auto& order = whole.schedule.order[rank];
  const std::vector<std::vector<Transfer>> receives = receives_of(whole, rank, lookahead);
  const std::vector<int>& known = whole.known[rank];
  const size_t ranks = static_cast<size_t>(whole.schedule.ranks);

  const std::vector<Transfer>& sends = whole.sent[rank];
  // after each position; the last entry: at the end
  std::vector<std::vector<Transfer>> releases(order.size() + 1);
  for (const Transfer& t : sends) {
    // Knowledge grows with the position: binary search.
    size_t low = static_cast<size_t>(t.made) + 1, high = order.size();
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (known[middle * ranks + t.peer] > t.used)
        high = middle;
      else
        low = middle + 1;
    }
    releases[low].push_back(t);
  }

  std::vector<PipelineStep> program;
  size_t next_send = 0;
  for (size_t i = 0; i <= order.size(); ++i) {
    if (i < order.size() && !ends_pair(order, i)) {
      for (const Transfer& t : receives[i]) program.push_back({StepKind::receive, {}, t.tensor, t.peer});
      program.push_back({StepKind::compute, order[i], {}, -1});
      if (order[i].with_next) program.back().second = order[i + 1];
    }
    for (const Transfer& t : releases[i]) program.push_back({StepKind::release, {}, t.tensor, t.peer});
    if (next_send < sends.size() && sends[next_send].made == static_cast<int>(i)) {
      const Transfer& t = sends[next_send++];
      program.push_back({StepKind::send, {}, t.tensor, t.peer});
    }
  }
  return program;
}

}  // namespace

std::string to_string(const TensorId& t) {
  return fmt::format("{} {}/{}", t.gradient ? "gradient" : "activation", t.stage, t.micro);
}

std::string to_string(const PipelineStep& p) {
  switch (p.kind) {
    case StepKind::receive:
      return fmt::format("receive {} from {}", to_string(p.tensor), p.peer);
    case StepKind::compute:
      return p.second ? fmt::format("compute {} beside {}", to_string(p.action), to_string(*p.second))
                      : fmt::format("compute {}", to_string(p.action));
    case StepKind::send:
      return fmt::format("send {} to {}", to_string(p.tensor), p.peer);
    case StepKind::release:
      return fmt::format("release {}, sent to {}", to_string(p.tensor), p.peer);
  }
  return "?";
}

TensorId taken_by(const Schedule& s, const Action& a) {
  if (a.kind == ActionKind::forward) return {false, a.stage > 0 ? a.stage : -1, a.micro};
  if (a.gives_gradient() && a.stage + 1 < s.stages()) return {true, a.stage, a.micro};
  return {false, -1, a.micro};
}

TensorId given_by(const Schedule& s, const Action& a) {
  if (a.kind == ActionKind::forward) return {false, a.stage + 1 < s.stages() ? a.stage + 1 : -1, a.micro};
  if (a.gives_gradient()) return {true, a.stage - 1, a.micro};
  return {false, -1, a.micro};
}

std::vector<PipelineStep> lower(const Schedule& s, int rank, int lookahead) {
  LT_CHECK(rank >= 0 && rank < s.ranks && lookahead >= 0,
           "expected a rank below {} and lookahead >= 0, got rank {} and lookahead {}", s.ranks, rank,
           lookahead);
  return program_of(Whole(s), rank, lookahead);
}

Programs lower_all(const Schedule& s) {
  const Whole whole(s);
  auto programs = std::make_shared<std::vector<std::vector<PipelineStep>>>();
  for (int rank = 0; rank < s.ranks; ++rank) programs->push_back(program_of(whole, rank, 1));
  return programs;
}

}  // namespace ltrain::pipeline
