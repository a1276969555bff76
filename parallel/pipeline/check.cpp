// Checks that a schedule is complete and can run; a file from outside may be wrong.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "parallel/pipeline/dependencies.h"

namespace ltrain::pipeline {
namespace {

class Checker {
 public:
  Checker(const Schedule& s, const std::string& source) : s_(s), source_(source) {}

  void run() {
    sizes();
    once_each();
    pairs();
    in_turn();
    runs_to_the_end();
  }

 private:
  template <class... Args>
  [[noreturn]] void broken(fmt::format_string<Args...> text, Args&&... args) {
    fail(ExitCode::usage, "{}: {}", source_, fmt::format(text, std::forward<Args>(args)...));
  }

  void sizes() {
    if (s_.ranks < 1 || s_.chunks < 1 || s_.micros < 1)
      broken("{} ranks, {} chunks, {} micro-batches: each must be at least 1", s_.ranks, s_.chunks,
             s_.micros);
    if (static_cast<int>(s_.order.size()) != s_.ranks)
      broken("{} ranks have an order, and the schedule is for {}", s_.order.size(), s_.ranks);
    if (int64_t{s_.stages()} != int64_t{s_.ranks} * s_.chunks)
      broken("{} stages are placed, and {} ranks of {} chunks hold {}", s_.stages(), s_.ranks, s_.chunks,
             int64_t{s_.ranks} * s_.chunks);
    std::vector<int> held(s_.ranks);
    for (int stage = 0; stage < s_.stages(); ++stage) {
      const int r = s_.rank_of_stage[stage];
      if (r < 0 || r >= s_.ranks)
        broken("stage {} is on rank {}, and there are {} ranks", stage, r, s_.ranks);
      ++held[r];
    }
    for (int r = 0; r < s_.ranks; ++r)
      if (held[r] != s_.chunks)
        broken("rank {} holds {} stages, and every rank must hold {}", r, held[r], s_.chunks);
  }

  void once_each() {
    const size_t n = static_cast<size_t>(s_.stages()) * s_.micros;
    std::vector<uint8_t> seen(n);  // one bit for each kind
    for (int r = 0; r < s_.ranks; ++r)
      for (size_t i = 0; i < s_.order[r].size(); ++i) {
        const Action& a = s_.order[r][i];
        if (a.stage < 0 || a.stage >= s_.stages() || a.micro < 0 || a.micro >= s_.micros)
          broken("rank {}, position {}: {} is beyond the {} stages and {} micro-batches", r, i, to_string(a),
                 s_.stages(), s_.micros);
        if (s_.rank_of_stage[a.stage] != r)
          broken("rank {}, position {}: {} is of stage {}, which rank {} holds", r, i, to_string(a), a.stage,
                 s_.rank_of_stage[a.stage]);
        uint8_t& bits = seen[static_cast<size_t>(a.stage) * s_.micros + a.micro];
        const uint8_t bit = uint8_t(1 << static_cast<int>(a.kind));
        if (bits & bit) broken("rank {}, position {}: {} is a duplicate", r, i, to_string(a));
        bits |= bit;
        const uint8_t full = 1 << static_cast<int>(ActionKind::backward);
        const uint8_t split = 1 << static_cast<int>(ActionKind::backward_input) |
                              1 << static_cast<int>(ActionKind::backward_weight);
        if ((bits & full) && (bits & split))
          broken(
              "rank {}, position {}: micro-batch {} of stage {} has a whole backward (B) and a part of one "
              "(I or W); it needs B, or I and then W. In files of PyTorch before 2.6 B stands for I",
              r, i, a.micro, a.stage);
      }
    for (int stage = 0; stage < s_.stages(); ++stage)
      for (int micro = 0; micro < s_.micros; ++micro) {
        const uint8_t bits = seen[static_cast<size_t>(stage) * s_.micros + micro];
        const auto has = [&](ActionKind k) { return (bits >> static_cast<int>(k) & 1) != 0; };
        const auto missing = [&](ActionKind k) {
          broken(
              "rank {} never runs {}: every stage needs each of the {} micro-batches forward (F) and "
              "backward "
              "(B, or I and W)",
              s_.rank_of_stage[stage], to_string(Action{k, stage, micro}), s_.micros);
        };
        if (!has(ActionKind::forward)) missing(ActionKind::forward);
        if (s_.forward_only) continue;
        if (has(ActionKind::backward)) continue;
        if (!has(ActionKind::backward_input) && !has(ActionKind::backward_weight))
          missing(ActionKind::backward);
        if (!has(ActionKind::backward_input)) missing(ActionKind::backward_input);
        if (!has(ActionKind::backward_weight)) missing(ActionKind::backward_weight);
      }
  }

  void pairs() {
    for (int r = 0; r < s_.ranks; ++r)
      for (size_t i = 0; i < s_.order[r].size(); ++i) {
        const auto& order = s_.order[r];
        if (!order[i].with_next) continue;
        if (i + 1 == order.size() || order[i + 1].with_next)
          broken("rank {}, position {}: {} has no action beside it", r, i, to_string(order[i]));
        const Action &a = order[i], &b = order[i + 1];
        const bool first = a.kind == ActionKind::forward, second = b.kind == ActionKind::forward;
        if (first == second || !(first ? b : a).gives_gradient() || a.micro == b.micro)
          broken(
              "rank {}, position {}: {} and {} are a pair, and a pair is a forward (F) and a backward (B or "
              "I) "
              "of different micro-batches",
              r, i, to_string(a), to_string(b));
      }
  }

  /// F before B or I, I before W, all on one rank.
  void in_turn() {
    if (s_.forward_only) return;
    const Positions p(s_);
    for (int stage = 0; stage < s_.stages(); ++stage)
      for (int micro = 0; micro < s_.micros; ++micro) {
        const auto& order = s_.order[s_.rank_of_stage[stage]];
        const int f = p.forward(stage, micro), g = p.gradient(stage, micro), w = p.last(stage, micro);
        const int late = f > g ? f : g, early = f > g ? g : w;
        if (f > g || g > w)
          broken("rank {}, position {}: {} comes before {} (position {})", s_.rank_of_stage[stage], early,
                 to_string(order[early]), to_string(order[late]), late);
      }
  }

  void runs_to_the_end() {
    const Needs needs(s_);
    const std::vector<int> done = run_in_order(s_, needs, [](const Action&, int, int) {});
    int rank = -1;
    for (int r = 0; r < s_.ranks && rank < 0; ++r)
      if (done[r] < static_cast<int>(s_.order[r].size())) rank = r;
    if (rank < 0) return;
    // Each stuck rank waits for another stuck rank, so that following them ends in a cycle.
    std::map<int, int> met;  // rank -> its index in `chain`
    std::vector<std::string> chain;
    std::vector<int> through;
    while (!met.count(rank)) {
      met[rank] = static_cast<int>(chain.size());
      const Action& a = s_.order[rank][done[rank]];
      const Place* needed = needs.waits_for(s_, rank, done);
      LT_CHECK(needed, "expected {} to wait for an action of another stage, got none, and it did not run",
               to_string(a));
      const Place from = *needed;
      const Action& giver = s_.order[from.rank][from.position];
      chain.push_back(
          fmt::format("rank {} waits at position {}, before {}, for {}, which rank {} runs at position {}",
                      rank, done[rank], to_string(a), to_string(giver), from.rank, from.position));
      through.push_back(rank);
      rank = from.rank;
    }
    std::string text;
    for (size_t i = static_cast<size_t>(met[rank]); i < chain.size(); ++i) text += "\n  " + chain[i];
    broken("the order never ends, since ranks wait for each other:{}", text);
  }

  const Schedule& s_;
  const std::string& source_;
};

}  // namespace

void check(const Schedule& schedule, const std::string& source) { Checker(schedule, source).run(); }

}  // namespace ltrain::pipeline
