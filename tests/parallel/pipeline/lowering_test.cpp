// Lowered programs, run on links that block; and what happens when a program is broken on purpose.
#include "parallel/pipeline/lowering.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "tests/parallel/pipeline/link_machine.h"

using namespace ltrain;
using namespace ltrain::pipeline;
using namespace ltrain::test;
using Catch::Contains;

namespace {

using Program = std::vector<PipelineStep>;

std::vector<Program> programs_of(const Schedule& s, int lookahead = 1) {
  std::vector<Program> out;
  for (int r = 0; r < s.ranks; ++r) out.push_back(lower(s, r, lookahead));
  return out;
}

/// Every schedule that exists for p, v, m out of a grid.
template <class F>
void grid(int most_ranks, F f) {
  for (const ScheduleInfo& info : schedules())
    for (int p = 1; p <= most_ranks; ++p)
      for (int v = 1; v <= 3; ++v)
        for (int m : {1, 2, 3, 4, 6, 8, 12})
          if (!schedule_rule(info.name, p, v, m))
            for (const bool pairs : {false, true})
              if (!pairs || info.pairs != Pairs::none)
                f(make_schedule(std::string(info.name), p, v, m, pairs));
}

std::string text(const Program& p) {
  std::string out;
  for (const PipelineStep& s : p) out += to_string(s) + "\n";
  return out;
}

size_t place(const Program& p, StepKind kind, const TensorId& t) {
  for (size_t i = 0; i < p.size(); ++i)
    if (p[i].kind == kind && p[i].tensor == t) return i;
  return p.size();
}

/// Actions that an action waits for, as (rank, position): a second reading of the rules, to compare with.
std::vector<std::pair<int, int>> direct_causes(const Schedule& s, int rank, int position) {
  std::vector<std::pair<int, int>> out;
  if (position > 0) out.push_back({rank, position - 1});
  const Action& a = s.order[rank][position];
  if (a.with_next) {  // inputs of the pair's other action, except this one
    out = direct_causes(s, rank, position + 1);
    std::erase(out, std::pair(rank, position));
    if (position > 0) out.push_back({rank, position - 1});
  }
  for (int r = 0; r < s.ranks; ++r)
    for (int i = 0; i < static_cast<int>(s.order[r].size()); ++i) {
      const Action& b = s.order[r][i];
      if (b.micro != a.micro) continue;
      const bool forward =
          a.kind == ActionKind::forward && b.kind == ActionKind::forward && b.stage + 1 == a.stage;
      const bool backward = a.gives_gradient() && b.gives_gradient() && b.stage == a.stage + 1;
      if (forward || backward) out.push_back({r, i});
    }
  return out;
}

/// Returns whether `later` cannot begin before `earlier` has run.
bool follows(const Schedule& s, std::pair<int, int> earlier, std::pair<int, int> later) {
  std::set<std::pair<int, int>> seen;
  std::vector<std::pair<int, int>> open{later};
  while (!open.empty()) {
    const auto at = open.back();
    open.pop_back();
    if (!seen.insert(at).second) continue;
    // Both actions of a pair have run when the output of either is there.
    const bool with_it =
        s.order[at.first][at.second].with_next && earlier == std::pair(at.first, at.second + 1);
    if (at == earlier || (with_it && at != later)) return true;
    for (const auto& cause : direct_causes(s, at.first, at.second)) open.push_back(cause);
  }
  return false;
}

}  // namespace

TEST_CASE("lowered programs run on blocking links, whatever the pace, and never wait to release",
          "[pipeline]") {
  int runs = 0;
  grid(6, [&](const Schedule& s) {
    for (int lookahead : {0, 1, 3}) {
      const std::vector<Program> programs = programs_of(s, lookahead);
      if (lookahead == 1) REQUIRE(*lower_all(s) == programs);
      for (Pace pace : {Pace::random, Pace::eager, Pace::lazy}) {
        const MachineRun run = run_programs(s, programs, pace, static_cast<uint64_t>(runs));
        INFO(s.name << " p " << s.ranks << " v " << s.chunks << " m " << s.micros << " lookahead "
                    << lookahead);
        REQUIRE(run.failure == "");
        REQUIRE(run.waits_at_release == 0);
        ++runs;
      }
    }
  });
  CHECK(runs > 500);
}

TEST_CASE("a receive is posted at most `lookahead` computes early, unless its link needs it", "[pipeline]") {
  int exact = 0, forced = 0;
  grid(5, [&](const Schedule& s) {
    for (int lookahead : {0, 1, 2})
      for (const Program& program : programs_of(s, lookahead)) {
        std::vector<int> computes_before(program.size());
        for (size_t i = 1; i < program.size(); ++i)
          computes_before[i] = computes_before[i - 1] + (program[i - 1].kind == StepKind::compute);
        std::vector<int> use(program.size(), -1);  // number of computes between a receive and its use
        for (size_t i = 0; i < program.size(); ++i)
          for (size_t j = i + 1; program[i].kind == StepKind::receive && j < program.size() && use[i] < 0;
               ++j)
            if (program[j].kind == StepKind::compute &&
                (taken_by(s, program[j].action) == program[i].tensor ||
                 (program[j].second && taken_by(s, *program[j].second) == program[i].tensor)))
              use[i] = computes_before[j];
        for (size_t i = 0; i < program.size(); ++i) {
          if (program[i].kind != StepKind::receive) continue;
          REQUIRE(use[i] >= 0);
          // The latest place that the link's later receives leave.
          int latest = use[i] - lookahead;
          for (size_t j = i + 1; j < program.size(); ++j)
            if (program[j].kind == StepKind::receive && program[j].peer == program[i].peer)
              latest = std::min(latest, use[j] - lookahead);
          INFO(s.name << " p " << s.ranks << " v " << s.chunks << " m " << s.micros << "\n" << text(program));
          REQUIRE(computes_before[i] == std::max(0, latest));
          ++(latest == use[i] - lookahead ? exact : forced);
        }
      }
  });
  CHECK(exact > 1000);
  CHECK(forced > 0);  // two ranks in a loop: activations and gradients of several chunks share a link
}

TEST_CASE("a release stands after the first compute that follows the peer's use", "[pipeline]") {
  int inside = 0, at_end = 0;
  grid(4, [&](const Schedule& s) {
    if (s.micros > 4) return;
    for (int r = 0; r < s.ranks; ++r) {
      const Program program = lower(s, r);
      int computed = 0, before = 0;  // actions, and those before the last compute
      for (const PipelineStep& step : program) {
        if (step.kind == StepKind::compute) before = computed, computed += step.second ? 2 : 1;
        if (step.kind != StepKind::release) continue;
        const auto& theirs = s.order[step.peer];
        const int use =
            static_cast<int>(std::find_if(theirs.begin(), theirs.end(),
                                          [&](const Action& a) { return taken_by(s, a) == step.tensor; }) -
                             theirs.begin());
        INFO(s.name << " p " << s.ranks << " v " << s.chunks << " m " << s.micros << " rank " << r << ": "
                    << to_string(step));
        const bool known = follows(s, {step.peer, use}, {r, computed - 1});
        // At the end of the program it may be that nothing follows.
        const bool last = computed == static_cast<int>(s.order[r].size());
        REQUIRE((known || last));
        if (!known) ++at_end;
        if (known) REQUIRE_FALSE(follows(s, {step.peer, use}, {r, before - 1}));
        if (known) ++inside;
      }
    }
  });
  CHECK(inside > 100);
  CHECK(at_end > 10);
}

TEST_CASE("programs that can be read", "[pipeline]") {
  const Schedule s = make_schedule("1f1b", 2, 1, 2);
  CHECK(text(lower(s, 0)) ==
        "compute 0F0\n"
        "send activation 1/0 to 1\n"
        "receive gradient 0/0 from 1\n"
        "compute 0F1\n"
        "send activation 1/1 to 1\n"
        "receive gradient 0/1 from 1\n"
        "compute 0B0\n"
        "release activation 1/0, sent to 1\n"
        "compute 0B1\n"
        "release activation 1/1, sent to 1\n");
  CHECK(text(lower(s, 1, 0)) ==
        "receive activation 1/0 from 0\n"
        "compute 1F0\n"
        "compute 1B0\n"
        "send gradient 0/0 to 0\n"
        "receive activation 1/1 from 0\n"
        "compute 1F1\n"
        "compute 1B1\n"
        "send gradient 0/1 to 0\n"
        "release gradient 0/0, sent to 0\n"
        "release gradient 0/1, sent to 0\n");
  // One rank, two chunks: everything is handed over.
  for (const PipelineStep& p : lower(make_schedule("zbv", 1, 2, 3), 0)) CHECK(p.kind == StepKind::compute);
  // The turn of a V: rank 1 of 2 holds stages 1 and 2, and sends nothing between them.
  for (const PipelineStep& p : lower(make_schedule("zbv", 2, 2, 4), 1))
    CHECK_FALSE((p.kind == StepKind::send && !p.tensor.gradient && p.tensor.stage == 2));
}

TEST_CASE("broken programs are caught: the machine's negative controls", "[pipeline]") {
  const Schedule s = make_schedule("1f1b", 3, 1, 6);
  const std::vector<Program> good = programs_of(s);
  REQUIRE(run_programs(s, good, Pace::random, 1).failure == "");
  const auto failure = [&](const std::vector<Program>& p) {
    return run_programs(s, p, Pace::random, 1).failure;
  };

  std::vector<Program> p = good;  // two receives of a link change places
  std::swap(p[1][place(p[1], StepKind::receive, {false, 1, 2})],
            p[1][place(p[1], StepKind::receive, {false, 1, 3})]);
  CHECK(failure(p) != "");
  p = good;  // a send is forgotten
  p[0].erase(p[0].begin() + static_cast<std::ptrdiff_t>(place(p[0], StepKind::send, {false, 1, 4})));
  CHECK(failure(p) != "");
  p = good;  // the last one is: no wrong tensor, only a wait without end
  p[0].erase(p[0].begin() + static_cast<std::ptrdiff_t>(place(p[0], StepKind::send, {false, 1, 5})));
  CHECK_THAT(failure(p), Contains("waits forever"));
  p = good;  // a receive is forgotten
  p[1].erase(p[1].begin() + static_cast<std::ptrdiff_t>(place(p[1], StepKind::receive, {true, 1, 0})));
  CHECK_THAT(failure(p), Contains("is used, not received") || Contains("and gradient 1/1 is received"));
  p = good;  // a release is forgotten
  p[2].erase(p[2].begin() + static_cast<std::ptrdiff_t>(place(p[2], StepKind::release, {true, 1, 0})));
  CHECK_THAT(failure(p), Contains("rank 2 does not release 1 sent tensors"));
  p = good;  // a release comes right after its send
  {
    const size_t release = place(p[0], StepKind::release, {false, 1, 0});
    const PipelineStep step = p[0][release];
    p[0].erase(p[0].begin() + static_cast<std::ptrdiff_t>(release));
    p[0].insert(p[0].begin() + static_cast<std::ptrdiff_t>(place(p[0], StepKind::send, {false, 1, 0})) + 1,
                step);
  }
  CHECK(run_programs(s, p, Pace::lazy, 1).waits_at_release > 0);
  p = good;  // a receive comes after its use
  {
    const size_t receive = place(p[1], StepKind::receive, {false, 1, 5});
    const PipelineStep step = p[1][receive];
    p[1].erase(p[1].begin() + static_cast<std::ptrdiff_t>(receive));
    p[1].push_back(step);
  }
  p = good;  // a gradient is sent before it is made
  {
    const size_t send = place(p[2], StepKind::send, {true, 1, 0});
    std::rotate(p[2].begin() + static_cast<std::ptrdiff_t>(send) - 1,
                p[2].begin() + static_cast<std::ptrdiff_t>(send),
                p[2].begin() + static_cast<std::ptrdiff_t>(send) + 1);
  }
  CHECK_THAT(failure(p), Contains("is sent, not made"));
}

TEST_CASE("a schedule that cannot run is not lowered", "[pipeline]") {
  Schedule s = make_schedule("1f1b", 2, 1, 2);
  s.order[1].pop_back();
  CHECK_THROWS_WITH(lower(s, 0), Contains("1f1b: rank 1 never runs 1B1"));
}
