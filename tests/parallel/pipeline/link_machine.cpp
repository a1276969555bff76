#include "tests/parallel/pipeline/link_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

namespace ltrain::test {

using namespace pipeline;

namespace {

using Key = std::tuple<bool, int, int>;
Key key(const TensorId& t) { return {t.gradient, t.stage, t.micro}; }

struct Link {
  std::vector<TensorId> sent, wanted;
  size_t ended = 0;
  bool has(const std::vector<TensorId>& posted, const TensorId& t) const {
    return std::find(posted.begin(), posted.end(), t) != posted.end();
  }
  bool arrived(const TensorId& t) const {
    return std::find(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(ended), t) !=
           wanted.begin() + static_cast<std::ptrdiff_t>(ended);
  }
};

class Machine {
 public:
  Machine(const Schedule& s, const std::vector<std::vector<PipelineStep>>& programs)
      : s_(s), programs_(programs), at_(programs.size()), made_(programs.size()), held_(programs.size()) {}

  MachineRun run(Pace pace, uint64_t seed) {
    std::mt19937_64 random(seed);
    const int ranks = static_cast<int>(programs_.size());
    while (run_.failure.empty()) {
      // Everybody who might move, in a random order; links first or last by the pace.
      std::vector<int> who;
      for (int i = 0; i < ranks + ranks * ranks; ++i) who.push_back(i);
      std::shuffle(who.begin(), who.end(), random);
      if (pace != Pace::random)
        std::stable_partition(who.begin(), who.end(),
                              [&](int i) { return (i >= ranks) == (pace == Pace::eager); });
      bool moved = false;
      for (int i : who) {
        moved = i < ranks ? step(i) : transfer((i - ranks) / ranks, (i - ranks) % ranks);
        if (moved || !run_.failure.empty()) break;
      }
      if (moved) continue;
      if (run_.failure.empty()) finish();
      break;
    }
    return run_;
  }

 private:
  void wrong(int rank, const std::string& text) {
    run_.failure = fmt::format("rank {}, step {}: {}", rank, at_[rank], text);
  }

  bool transfer(int from, int to) {
    Link& l = links_[{from, to}];
    if (l.ended == l.sent.size() || l.ended == l.wanted.size()) return false;
    if (l.sent[l.ended] != l.wanted[l.ended])
      run_.failure = fmt::format("link {} to {}: sends {}, and {} is received", from, to,
                                 to_string(l.sent[l.ended]), to_string(l.wanted[l.ended]));
    ++l.ended;
    return true;
  }

  bool step(int rank) {
    const auto& program = programs_[rank];
    if (at_[rank] == program.size()) return false;
    const PipelineStep& p = program[at_[rank]];
    if (p.kind == StepKind::receive) {
      links_[{p.peer, rank}].wanted.push_back(p.tensor);
    } else if (p.kind == StepKind::send) {
      if (!made_[rank].count(key(p.tensor)))
        return wrong(rank, to_string(p.tensor) + " is sent, not made"), false;
      links_[{rank, p.peer}].sent.push_back(p.tensor);
      run_.most_unreleased = std::max(run_.most_unreleased, ++held_[rank]);
    } else if (p.kind == StepKind::release) {
      const Link& l = links_[{rank, p.peer}];
      if (!l.has(l.sent, p.tensor)) return wrong(rank, to_string(p.tensor) + " is released, not sent"), false;
      if (!l.arrived(p.tensor)) {
        const bool at_end =
            std::none_of(program.begin() + static_cast<std::ptrdiff_t>(at_[rank]), program.end(),
                         [](const PipelineStep& q) { return q.kind == StepKind::compute; });
        if (!at_end && waiting_.insert({rank, at_[rank]}).second) ++run_.waits_at_release;
        return false;
      }
      if (!released_.insert({rank, p.peer, key(p.tensor)}).second)
        return wrong(rank, to_string(p.tensor) + " is released twice"), false;
      --held_[rank];
    } else {
      // Both actions of a pair begin when the inputs of both are there.
      if (!ready(rank, p.action) || (p.second && !ready(rank, *p.second))) return false;
      compute(rank, p.action);
      if (p.second) compute(rank, *p.second);
    }
    ++at_[rank];
    return true;
  }

  bool ready(int rank, const Action& a) {
    if (const TensorId t = taken_by(s_, a); t.stage >= 0) {
      const int from = s_.rank_of_stage[t.gradient ? t.stage + 1 : t.stage - 1];
      if (from == rank) {
        if (!made_[rank].count(key(t))) return wrong(rank, to_string(t) + " is used, not made"), false;
      } else {
        const Link& l = links_[{from, rank}];
        if (!l.has(l.wanted, t)) return wrong(rank, to_string(t) + " is used, not received"), false;
        if (!l.arrived(t)) return false;
      }
    }
    return true;
  }

  void compute(int rank, const Action& a) {
    computed_.push_back({rank, a});
    if (const TensorId t = given_by(s_, a); t.stage >= 0) made_[rank].insert(key(t));
  }

  void finish() {
    for (size_t r = 0; r < programs_.size(); ++r)
      if (at_[r] < programs_[r].size())
        return wrong(static_cast<int>(r), "waits forever in: " + to_string(programs_[r][at_[r]]));
    std::vector<std::vector<Action>> order(s_.order.size());
    for (const auto& [rank, a] : computed_) order[rank].push_back(a);
    if (order != s_.order) run_.failure = "the programs compute something else than the schedule";
    for (const auto& [ends, l] : links_) {
      if (l.sent.size() != l.ended || l.wanted.size() != l.ended)
        run_.failure = fmt::format("link {} to {}: {} sent, {} received", ends.first, ends.second,
                                   l.sent.size(), l.wanted.size());
    }
    for (size_t r = 0; r < held_.size(); ++r)
      if (held_[r] != 0) run_.failure = fmt::format("rank {} does not release {} sent tensors", r, held_[r]);
  }

  const Schedule& s_;
  const std::vector<std::vector<PipelineStep>>& programs_;
  std::vector<size_t> at_;
  std::vector<std::set<Key>> made_;
  std::vector<int> held_;
  std::map<std::pair<int, int>, Link> links_;
  std::set<std::pair<int, size_t>> waiting_;
  std::set<std::tuple<int, int, Key>> released_;
  std::vector<std::pair<int, Action>> computed_;
  MachineRun run_;
};

}  // namespace

MachineRun run_programs(const Schedule& schedule, const std::vector<std::vector<PipelineStep>>& programs,
                        Pace pace, uint64_t seed) {
  return Machine(schedule, programs).run(pace, seed);
}

}  // namespace ltrain::test
