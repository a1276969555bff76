// Schedules against the closed forms of their papers, and what is refused.
#include "parallel/pipeline/schedule.h"

#include <catch2/catch.hpp>

#include <random>

#include <algorithm>

#include "base/error.h"
#include "parallel/pipeline/simulate.h"

using namespace ltrain;
using namespace ltrain::pipeline;
using Catch::Contains;

namespace {

struct Costs {
  double f, i, w;
};
const Costs kCosts[] = {{1, 1, 1}, {1, 1.5, 0.5}, {2, 1, 1}, {3, 5, 2}};

Timing time_of(const Schedule& s, const Costs& c) {
  return simulate(s, StageCosts::uniform(s.stages(), c.f, c.i, c.w));
}

std::string text(const Schedule& s, int rank) {
  std::string out;
  for (const Action& a : s.order[rank]) out += (out.empty() ? "" : " ") + to_string(a);
  return out;
}

std::string refusal(const Schedule& s) {
  try {
    check(s, "file.csv");
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::usage);
    return e.what();
  }
  return "(accepted)";
}

Action* find(Schedule& s, ActionKind kind, int stage, int micro) {
  for (auto& order : s.order)
    for (Action& a : order)
      if (a == Action{kind, stage, micro}) return &a;
  return nullptr;
}

}  // namespace

TEST_CASE("gpipe and 1f1b: bubble (p-1)(F+B), peaks m and min(m, p-r)", "[pipeline]") {
  for (const Costs& c : kCosts)
    for (int p = 1; p <= 16; ++p)
      for (int m = 1; m <= 64; m += m < 20 ? 1 : 11) {
        const double b = c.i + c.w, ideal = m * (c.f + b);
        for (const char* name : {"gpipe", "1f1b"}) {
          const Timing t = time_of(make_schedule(name, p, 1, m), c);
          INFO(name << " p " << p << " m " << m << " F " << c.f << " I " << c.i << " W " << c.w);
          REQUIRE(t.makespan == Approx(ideal + (p - 1) * (c.f + b)));
          for (int r = 0; r < p; ++r) {
            REQUIRE(t.bubble[r] == Approx((p - 1) * (c.f + b)));
            REQUIRE(t.peak_activations[r] == (name[0] == 'g' ? m : std::min(m, p - r)));
          }
          REQUIRE(t.bubble_share == Approx((p - 1.0) / (m + p - 1)));
        }
      }
}

TEST_CASE("interleaved: bubble (p-1)(F+B)/v, peaks 2(p-r-1) + (v-1)p + 1 chunks", "[pipeline]") {
  for (const Costs& c : kCosts)
    for (int v = 2; v <= 4; ++v)
      for (int p = 1; p <= 16; ++p)
        for (int m = p; m <= 64; m += p) {
          const Timing t = time_of(make_schedule("interleaved", p, v, m), c);
          INFO("v " << v << " p " << p << " m " << m << " F " << c.f << " I " << c.i << " W " << c.w);
          // Costs are of a chunk: the papers' F / v.
          REQUIRE(t.makespan == Approx((m * v + p - 1) * (c.f + c.i + c.w)));
          for (int r = 0; r < p; ++r)
            REQUIRE(t.peak_activations[r] == std::min(m * v, 2 * (p - r - 1) + (v - 1) * p + 1));
        }
}

TEST_CASE("zb-h1: a third of 1f1b's bubble at the same peak, F = I = W", "[pipeline]") {
  for (int p = 1; p <= 16; ++p)
    for (int m = 1; m <= 64; m += m < 40 ? 1 : 8) {
      const Timing t = time_of(make_schedule("zb-h1", p, 1, m), {1, 1, 1});
      INFO("p " << p << " m " << m);
      // (p-1)(F+I-W) once there is a micro-batch for each rank.
      REQUIRE(t.makespan == Approx(3 * m + (m >= p ? p - 1 : 2 * p - 1 - m)));
      for (int r = 0; r < p; ++r) REQUIRE(t.peak_activations[r] == std::min(m, p));
    }
}

TEST_CASE("zb-h2 and zbv: no idle time within a rank, F = I = W", "[pipeline]") {
  for (int p = 1; p <= 16; ++p)
    for (int m = 1; m <= 64; m += m < 40 ? 1 : 8) {
      const Timing h2 = time_of(make_schedule("zb-h2", p, 1, m), {1, 1, 1});
      const Timing v = time_of(make_schedule("zbv", p, 2, m), {1, 1, 1});
      INFO("p " << p << " m " << m);
      for (int r = 0; r < p; ++r) {
        REQUIRE(h2.peak_activations[r] <= 2 * p - 1);
        REQUIRE(v.peak_activations[r] <= 2 * p);  // halves of a stage: what 1f1b's first rank keeps
        if (m < 2 * p - 1) continue;
        REQUIRE(h2.inner_bubble[r] == Approx(0).margin(1e-9));
        REQUIRE(v.inner_bubble[r] == Approx(0).margin(1e-9));
      }
      if (m < 2 * p - 1) continue;
      // The rest is the skew of the start: p - 1 forwards of a stage, or of half a stage.
      REQUIRE(h2.makespan == Approx(3 * m + p - 1));
      REQUIRE(v.makespan == Approx(6 * m + p - 1));
      REQUIRE(*std::max_element(h2.peak_activations.begin(), h2.peak_activations.end()) == 2 * p - 1);
    }
  // Negative control: with unequal costs there is idle time, and it is seen.
  CHECK(time_of(make_schedule("zb-h2", 4, 1, 16), {2, 1, 1}).inner_bubble[0] > 0.5);
  CHECK(time_of(make_schedule("zbv", 4, 2, 16), {2, 1, 1}).inner_bubble[0] > 0.5);
}

TEST_CASE("dualpipev: bubble and peak within the stated ones", "[pipeline]") {
  for (const Costs& c : kCosts)
    for (int p = 1; p <= 16; ++p)
      for (int m = 2 * p; m <= 64; ++m) {
        const Timing t = time_of(make_schedule("dualpipev", p, 2, m), c);
        INFO("p " << p << " m " << m << " F " << c.f << " I " << c.i << " W " << c.w);
        const double b = c.i + c.w;
        REQUIRE(t.makespan <= 2 * m * (c.f + b) + (p - 1) * (c.f + b + b - 3 * c.w) + 1e-9);
        for (int r = 0; r < p; ++r) REQUIRE(t.peak_activations[r] == 2 * p + 1);
      }
}

TEST_CASE("dualpipev's pairs: all of the steady phase, within the published bubble, whatever they hide",
          "[pipeline]") {
  for (const Costs& c : kCosts)
    for (int p = 2; p <= 16; ++p)
      for (int m = 2 * p; m <= 64; ++m)
        for (const double hidden : {0.0, 0.5, 1.0}) {  // the shorter action of a pair
          const Schedule s = make_schedule("dualpipev", p, 2, m, true);
          StageCosts costs = StageCosts::uniform(s.stages(), c.f, c.i, c.w);
          const double b = c.i + c.w, saved = hidden * std::min(c.f, b), pair = c.f + b - saved;
          costs.hidden.assign(static_cast<size_t>(s.stages()) * s.stages(), saved);
          const Timing t = simulate(s, costs);
          INFO("p " << p << " m " << m << " F " << c.f << " I " << c.i << " W " << c.w << " hidden "
                    << hidden);
          REQUIRE(without_pairs(s).order == make_schedule("dualpipev", p, 2, m).order);
          for (int r = 0; r < p; ++r) {
            int pairs = 0;
            for (const Action& a : s.order[r]) pairs += a.with_next;
            // n F0 B1 F1 B0 and then p - r - 1 times B1, F1 B0; not the first at the bottom of the V.
            const int steady = m - 2 * p + r + 1;
            REQUIRE(pairs == 2 * steady + (p - r - 1) - (r == p - 1 ? 1 : 0));
            REQUIRE(t.busy[r] == Approx(2 * m * (c.f + b) - pairs * saved));
            REQUIRE(t.peak_activations[r] == 2 * p + 1);
          }
          // DeepSeek's bubble of DualPipeV: (p - 1) (F&B + B - 3 W).
          const double most = *std::max_element(t.busy.begin(), t.busy.end());
          REQUIRE(t.makespan <=
                  most + (p - 1) * std::max(0.0, pair + b - 3 * c.w) + (p - 1) * 2 * c.w + 1e-9);
        }
}

TEST_CASE("interleaved's pairs: the whole steady phase, without a longer bubble", "[pipeline]") {
  for (const Costs& c : kCosts)
    for (int v = 2; v <= 4; ++v)
      for (int p = 2; p <= 16; ++p)
        for (int m = p; m <= 64; m += p) {
          const Schedule s = make_schedule("interleaved", p, v, m, true);
          INFO("v " << v << " p " << p << " m " << m << " F " << c.f << " I " << c.i << " W " << c.w);
          REQUIRE(without_pairs(s).order == make_schedule("interleaved", p, v, m).order);
          StageCosts costs = StageCosts::uniform(s.stages(), c.f, c.i, c.w);
          const double both = c.f + c.i + c.w, hidden = 0.5 * std::min(c.f, c.i + c.w);
          // Priced as the sum of its two a pair costs what they do apart; each on the way of the last rank's
          // micro-batches hides as much.
          REQUIRE(simulate(s, costs).makespan == Approx((m * v + p - 1) * both));
          costs.hidden.assign(static_cast<size_t>(s.stages()) * s.stages(), hidden);
          const Timing t = simulate(s, costs);
          for (int r = 0; r < p; ++r) {
            const int lead = std::min(m * v, 2 * (p - r - 1) + (v - 1) * p + 1), pairs = m * v - lead;
            REQUIRE(t.busy[r] == Approx(m * v * both - pairs * hidden));
            REQUIRE(t.peak_activations[r] == std::min(m * v, lead + 1));
          }
          REQUIRE(t.makespan <= t.busy[0] + (p - 1) * both + 1e-9);
        }
}

TEST_CASE("a pair is one action: it begins with both and ends both, and takes what is said of it",
          "[pipeline]") {
  Schedule s;
  s.name = "by hand";
  s.ranks = 2, s.chunks = 1, s.micros = 3;
  s.rank_of_stage = {0, 1};
  using enum ActionKind;
  s.order = {{{forward, 0, 0},
              {forward, 0, 1},
              {backward, 0, 0, true},
              {forward, 0, 2},
              {backward, 0, 1},
              {backward, 0, 2}},
             {{forward, 1, 0},
              {backward, 1, 0},
              {forward, 1, 1},
              {backward, 1, 1},
              {forward, 1, 2},
              {backward, 1, 2}}};
  StageCosts costs = StageCosts::uniform(2, 1, 1, 1);
  const auto begins = [&] { return simulate(s, costs).start[0]; };
  const auto ends = [&] { return simulate(s, costs).end[0]; };
  // 1B0 ends at 4: then both begin, and F's tensor is there when both have ended.
  CHECK(begins() == std::vector<double>{0, 1, 4, 4, 7, 10});
  CHECK(ends()[2] == 7);
  CHECK(ends()[3] == 7);
  CHECK(simulate(s, costs).peak_activations[0] == 3);  // the forward keeps beside the backward
  costs.hidden.assign(4, 0.75);
  CHECK(ends()[3] == 6.25);
  costs.hidden.assign(4, 5);  // no less than the longer one
  CHECK(ends()[3] == 6);
  costs.pairs = {{0, 0, 2.5, 0, 0, 0}, {}};  // the pass knows this part
  CHECK(ends()[3] == 6.5);
  CHECK(simulate(s, costs).busy[0] == 1 + 1 + 2.5 + 2 + 2);
  costs.pairs.clear(), costs.hidden.clear();
  CHECK(simulate(without_pairs(s), costs).start[0] == std::vector<double>{0, 1, 4, 6, 7, 10});
}

TEST_CASE("what is left of a pair runs alone", "[pipeline]") {
  std::vector<Action> order = make_schedule("dualpipev", 2, 2, 6, true).order[0];
  for (const ActionKind gone : {ActionKind::forward, ActionKind::backward}) {
    std::vector<Action> left = order;
    erase_actions(left, [&](const Action& a) { return a.kind == gone; });
    for (const Action& a : left) CHECK_FALSE(a.with_next);
  }
  erase_actions(order, [&](const Action& a) { return a.micro >= 5; });
  int pairs = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (!order[i].with_next) continue;
    ++pairs;
    CHECK((order[i].kind == ActionKind::forward && order[i + 1].gives_gradient()));
  }
  CHECK(pairs > 2);
}

TEST_CASE("the simulator sees a worse order (negative control of the closed forms)", "[pipeline]") {
  Schedule s = make_schedule("1f1b", 4, 1, 8);
  const Timing good = time_of(s, {1, 1, 1});
  // Rank 0 runs one forward more before its first backward: the same time, one activation more.
  auto& order = s.order[0];
  std::swap(order[4], order[5]);
  REQUIRE(text(s, 0).rfind("0F0 0F1 0F2 0F3 0F4 0B0", 0) == 0);
  CHECK(time_of(s, {1, 1, 1}).peak_activations[0] == good.peak_activations[0] + 1);
  // The last rank runs two forwards first: every backward is later.
  s = make_schedule("1f1b", 4, 1, 8);
  std::swap(s.order[3][1], s.order[3][2]);
  CHECK(time_of(s, {1, 1, 1}).makespan > good.makespan);
  // zb-h1 without the split is 1f1b again.
  s = make_schedule("zb-h1", 4, 1, 8);
  for (auto& o : s.order) {
    std::erase_if(o, [](const Action& a) { return a.kind == ActionKind::backward_weight; });
    for (Action& a : o)
      if (a.kind == ActionKind::backward_input) a.kind = ActionKind::backward;
  }
  CHECK(time_of(s, {1, 1, 1}).makespan == Approx(good.makespan));
}

TEST_CASE("orders that can be read", "[pipeline]") {
  CHECK(text(make_schedule("gpipe", 2, 1, 2), 1) == "1F0 1F1 1B0 1B1");
  CHECK(text(make_schedule("1f1b", 2, 1, 3), 0) == "0F0 0F1 0B0 0F2 0B1 0B2");
  CHECK(text(make_schedule("1f1b", 2, 1, 3), 1) == "1F0 1B0 1F1 1B1 1F2 1B2");
  CHECK(text(make_schedule("interleaved", 2, 2, 2), 0) == "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1");
  CHECK(text(make_schedule("interleaved", 2, 2, 2), 1) == "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1");
  CHECK(text(make_schedule("zb-h1", 2, 1, 2), 1) == "1F0 1I0 1F1 1I1 1W0 1W1");
  const Schedule v = make_schedule("zbv", 3, 2, 5);
  CHECK(v.rank_of_stage == std::vector<int>{0, 1, 2, 2, 1, 0});
  CHECK(v.chunk_of(1) == 0);
  CHECK(v.chunk_of(4) == 1);
  CHECK(make_schedule("interleaved", 2, 0, 4).chunks == 2);  // 0: the least
  CHECK(make_schedule("1f1b", 2, 0, 4).chunks == 1);
}

TEST_CASE("every schedule is complete and runs, for any numbers that its rules allow", "[pipeline]") {
  int made = 0;
  for (const ScheduleInfo& info : schedules())
    for (int p = 1; p <= 9; ++p)
      for (int v = 1; v <= 4; ++v)
        for (int m = 1; m <= 19; ++m) {
          const std::string name(info.name);
          if (schedule_rule(name, p, v, m)) {
            CHECK_THROWS_AS(make_schedule(name, p, v, m), Error);
            continue;
          }
          INFO(name << " p " << p << " v " << v << " m " << m);
          REQUIRE(refusal(make_schedule(name, p, v, m)) == "(accepted)");
          ++made;
        }
  CHECK(made > 1000);
}

TEST_CASE("violations name the rule and the nearest valid number", "[pipeline]") {
  const auto what = [](const char* name, int p, int v, int m) { return schedule_rule(name, p, v, m).text; };
  CHECK(what("interleaved", 4, 2, 6) ==
        "needs a multiple of its 4 ranks as micro-batches, and there are 6; nearest valid number: 4 or 8");
  CHECK(schedule_rule("interleaved", 4, 2, 6).nearest_micros == std::vector<int>{4, 8});
  CHECK(what("interleaved", 4, 2, 3) ==
        "needs a multiple of its 4 ranks as micro-batches, and there are 3; nearest valid number: 4");
  CHECK(what("interleaved", 4, 1, 8) ==
        "needs at least 2 chunks a rank, and there is 1; nearest valid number: 2");
  CHECK(what("zbv", 4, 3, 8) == "needs exactly 2 chunks a rank, and there are 3; nearest valid number: 2");
  CHECK(what("1f1b", 4, 2, 8) == "needs exactly 1 chunk a rank, and there are 2; nearest valid number: 1");
  CHECK(what("dualpipev", 4, 2, 7) ==
        "needs at least two micro-batches for each of its 4 ranks, and there are 7; nearest valid number: 8");
  CHECK(what("1f1b", 4, 1, 0) == "needs at least 1 micro-batch, and there are 0");
  CHECK(what("zb-v", 4, 1, 4) == "is not one of gpipe, 1f1b, interleaved, zb-h1, zb-h2, zbv, dualpipev");
  CHECK_THROWS_WITH(make_schedule("dualpipev", 4, 2, 7),
                    Contains("pipeline schedule dualpipev: needs at least two"));
  CHECK_THROWS_WITH(make_schedule("1f1b", 1 << 15, 1, 1 << 15), Contains("use fewer micro-batches"));
}

TEST_CASE("a missing, doubled, foreign or misplaced action is refused", "[pipeline]") {
  const Schedule good = make_schedule("zb-h1", 2, 1, 3);
  CHECK(refusal(good) == "(accepted)");
  Schedule s = good;
  std::erase(s.order[1], Action{ActionKind::backward_weight, 1, 2});
  CHECK_THAT(refusal(s),
             Contains("file.csv: rank 1 never runs 1W2: every stage needs each of the 3 micro-batches"));
  s = good;
  std::erase(s.order[0], Action{ActionKind::forward, 0, 0});
  CHECK_THAT(refusal(s), Contains("rank 0 never runs 0F0"));
  s = good;
  s.order[1].push_back({ActionKind::forward, 1, 1});
  CHECK_THAT(refusal(s), Contains("rank 1, position 9: 1F1 is a duplicate"));
  s = good;
  s.order[1].push_back({ActionKind::backward, 1, 1});
  CHECK_THAT(refusal(s), Contains("micro-batch 1 of stage 1 has a whole backward (B) and a part of one"));
  s = good;
  find(s, ActionKind::forward, 1, 1)->stage = 0;
  CHECK_THAT(refusal(s), Contains("0F1 is of stage 0, which rank 0 holds"));
  s = good;
  find(s, ActionKind::forward, 1, 1)->micro = 3;
  CHECK_THAT(refusal(s), Contains("1F3 is beyond the 2 stages and 3 micro-batches"));
  s = good;
  std::swap(*find(s, ActionKind::backward_input, 1, 0), *find(s, ActionKind::backward_weight, 1, 0));
  CHECK_THAT(refusal(s), Contains("1W0 comes before 1I0"));
  s = good;
  s.rank_of_stage[1] = 0;
  CHECK_THAT(refusal(s), Contains("rank 0 holds 2 stages, and every rank must hold 1"));
  s = good;
  s.rank_of_stage[1] = 2;
  CHECK_THAT(refusal(s), Contains("stage 1 is on rank 2, and there are 2 ranks"));
  s = good;
  s.order.pop_back();
  CHECK_THAT(refusal(s), Contains("1 ranks have an order, and the schedule is for 2"));
}

TEST_CASE("a deadlock is reported with its cycle", "[pipeline]") {
  // Rank 0 wants the gradient of micro-batch 1 before it gives micro-batch 2, and rank 1 the other way round.
  Schedule s = make_schedule("1f1b", 2, 1, 3);
  std::swap(*find(s, ActionKind::forward, 0, 2), *find(s, ActionKind::backward, 0, 1));
  std::swap(*find(s, ActionKind::forward, 1, 2), *find(s, ActionKind::backward, 1, 1));
  CHECK(refusal(s) ==
        "file.csv: the order never ends, since ranks wait for each other:\n"
        "  rank 0 waits at position 3, before 0B1, for 1B1, which rank 1 runs at position 4\n"
        "  rank 1 waits at position 3, before 1F2, for 0F2, which rank 0 runs at position 4");
  CHECK_THROWS_WITH(simulate(s, StageCosts::uniform(2)), Contains("wait for each other"));
  // A rank that waits for itself: the turn of a V, the wrong way round.
  s = make_schedule("zbv", 1, 2, 1);
  std::swap(*find(s, ActionKind::forward, 0, 0), *find(s, ActionKind::forward, 1, 0));
  CHECK_THAT(refusal(s),
             Contains("rank 0 waits at position 0, before 1F0, for 0F0, which rank 0 runs at position 1"));
}

TEST_CASE("transfers delay, follow each other on a link, and cost nothing within a rank", "[pipeline]") {
  const int p = 4, m = 6;
  StageCosts c = StageCosts::uniform(p, 1, 1, 1);
  c.transfer.assign(p * p, 0.25);
  // Each way through the pipeline once: the rest hides behind computation.
  CHECK(simulate(make_schedule("gpipe", p, 1, m), c).makespan ==
        Approx((m + p - 1) * 3 + 2 * (p - 1) * 0.25));
  // A link that is slower than a forward: the last rank gets its inputs one transfer apart.
  StageCosts slow = StageCosts::uniform(2, 1, 1, 1);
  slow.transfer.assign(4, 3);
  const Timing t = simulate(make_schedule("gpipe", 2, 1, 3), slow);
  CHECK(t.start[1][0] == Approx(4));
  CHECK(t.start[1][1] == Approx(7));
  CHECK(t.start[1][2] == Approx(10));
  StageCosts one = StageCosts::uniform(2, 1, 1, 1);
  one.transfer.assign(1, 100);
  CHECK(simulate(make_schedule("zbv", 1, 2, 3), one).makespan == Approx(18));
  c.optimizer = {1, 2, 5, 1};
  const Timing tail = simulate(make_schedule("gpipe", p, 1, m), c);
  CHECK(tail.step == Approx(tail.makespan + 5));
}

TEST_CASE("an action takes no less than its rank says", "[pipeline]") {
  const int p = 2, m = 3;
  StageCosts c = StageCosts::uniform(p, 1, 1, 1);
  const pipeline::Schedule s = make_schedule("gpipe", p, 1, m);
  const double makespan = simulate(s, c).makespan;
  c.least.assign(p, {});
  c.least[1].assign(s.order[1].size(), 0.5);
  CHECK(simulate(s, c).makespan == makespan);
  c.least[1].back() = 7;  // backward of 2 seconds
  CHECK(simulate(s, c).makespan == makespan + 5);
  CHECK(simulate(s, c).busy[1] == Approx(3 + 2 * 2 + 7));
  c.least[1].pop_back();
  CHECK_THROWS_WITH(
      simulate(s, c),
      Contains("least costs of rank 1: expected non-negative costs of 6 actions, got 5 numbers"));
  c.least.pop_back();
  CHECK_THROWS_WITH(simulate(s, c), Contains("least costs: expected lists of 2 ranks, got 1"));
}

TEST_CASE("what all ranks wait for from the begin on is hidden by the way to their stage", "[pipeline]") {
  // 0: F0 0-1, F1 1-2, B0 4-6, B1 7-9; 1: F0 1-2, B0 2-4, F1 4-5, B1 5-7.
  const pipeline::Schedule s = make_schedule("1f1b", 2, 1, 2);
  StageCosts c = StageCosts::uniform(2, 1, 1, 1);
  REQUIRE(simulate(s, c).makespan == Approx(9));
  c.earliest_end = {{1.5, 0, 0, 0}, {1.75, 0, 0, 0}};
  const Timing hidden = simulate(s, c);
  CHECK(hidden.end[0][0] == Approx(1.5));
  CHECK(hidden.end[1][0] == Approx(2.5));  // it begins at 1.5: nothing is left to wait for
  CHECK(hidden.makespan == Approx(9.5));
  CHECK(hidden.waited == std::vector<double>{0.5, 0});
  CHECK(hidden.busy[0] == Approx(6.5));
  CHECK(hidden.bubble[0] == Approx(3));
  // The same waits within actions that take as much longer come one after the other.
  StageCosts longer = StageCosts::uniform(2, 1, 1, 1);
  longer.least = {{1.5, 0, 0, 0}, {1.75, 0, 0, 0}};
  CHECK(simulate(s, longer).makespan == Approx(10.25));
  // Weights that arrive after the first micro-batch add waiting time.
  c.earliest_end[1][0] = 4;
  const Timing late = simulate(s, c);
  CHECK(late.end[1][0] == Approx(4));
  CHECK(late.waited[1] == Approx(1.5));
  CHECK(late.makespan == Approx(11));
  c.earliest_end[1].clear();
  CHECK(simulate(s, c).makespan == Approx(9.5));
  c.earliest_end[1] = {1, 2};
  CHECK_THROWS_WITH(
      simulate(s, c),
      Contains("earliest ends of rank 1: expected non-negative costs of 4 actions, got 2 numbers"));
}

TEST_CASE("every schedule ends as much later as its first action does", "[pipeline]") {
  for (const ScheduleInfo& info : schedules()) {
    INFO(info.name);
    const pipeline::Schedule s = make_schedule(std::string(info.name), 4, info.least_chunks, 8);
    StageCosts c = StageCosts::uniform(s.stages(), 1, 1.25, 0.75);
    c.transfer.assign(16, 0.125);
    const double makespan = simulate(s, c).makespan;
    const auto first = static_cast<size_t>(s.rank_of_stage.front());
    c.earliest_end.assign(4, {});
    c.earliest_end[first].assign(s.order[first].size(), 0);
    c.earliest_end[first].front() = 1.75;
    CHECK(simulate(s, c).makespan == Approx(makespan + 0.75));
  }
}

TEST_CASE("what a rank keeps is summed in the unit of the stages", "[pipeline]") {
  StageCosts c = StageCosts::uniform(4, 1, 1, 1);
  c.activation = {1, 2, 4, 8};
  const Timing t = simulate(make_schedule("1f1b", 4, 1, 8), c);
  CHECK(t.peak_kept == std::vector<double>{4, 6, 8, 8});
  // On a V a rank keeps of both of its stages.
  const Timing v = simulate(make_schedule("zbv", 2, 2, 8), c);
  CHECK(v.peak_kept[0] > 8);
  CHECK(v.peak_activations[0] == 4);
}

TEST_CASE("no schedule ends before the least that its stages come to", "[pipeline]") {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> seconds(0.5, 2);
  for (const ScheduleInfo& info : schedules())
    for (int ranks : {1, 2, 4, 8})
      for (int micros : {1, 4, 8, 24}) {
        const int chunks = info.least_chunks;
        if (schedule_rule(info.name, ranks, chunks, micros)) continue;
        const Schedule s = make_schedule(std::string(info.name), ranks, chunks, micros);
        StageCosts costs = StageCosts::uniform(s.stages());
        for (auto* of : {&costs.forward, &costs.input, &costs.weight})
          for (double& c : *of) c = seconds(random);
        INFO(info.name << " of " << ranks << " ranks, " << micros << " micro-batches");
        const double least = least_makespan(s.rank_of_stage, costs, micros, info.splits_backward);
        const double took = simulate(s, costs).makespan;
        CHECK(least <= took * (1 + 1e-12));
        CHECK(least > 0.4 * took);
        // With equal stages, 1F1B has only the bubble of the first and the last micro-batch.
        const StageCosts like = StageCosts::uniform(s.stages());
        if (info.name == "1f1b")
          CHECK(least_makespan(s.rank_of_stage, like, micros, false) == Approx(simulate(s, like).makespan));
      }
}
