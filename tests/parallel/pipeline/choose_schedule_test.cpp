// Layers of each stage, and the schedule that `auto` chooses.
#include "parallel/pipeline/choose_schedule.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <random>

#include "base/error.h"
#include "base/time_scale.h"
#include "parallel/pipeline/fill_weights.h"
#include "parallel/pipeline/split_layers.h"

using namespace ltrain;
using namespace ltrain::pipeline;
using Catch::Contains;

namespace {

/// Least maximum over every split, tried one by one.
double brute_force(const std::vector<double>& costs, double first, double last, int stages) {
  double best = 1e300;
  std::vector<int> counts(stages, 1);
  const int layers = static_cast<int>(costs.size());
  const std::function<void(int, int)> place = [&](int stage, int left) {
    if (stage == stages - 1) {
      counts[stage] = left;
      const std::vector<double> sums = stage_sums(costs, first, last, counts);
      best = std::min(best, *std::max_element(sums.begin(), sums.end()));
      return;
    }
    for (int n = 1; n <= left - (stages - stage - 1); ++n) {
      counts[stage] = n;
      place(stage + 1, left - n);
    }
  };
  place(0, layers);
  return best;
}

LayerCosts layers(int n, double f = 1, double i = 1, double w = 1) {
  LayerCosts c;
  c.forward.assign(n, f);
  c.input.assign(n, i);
  c.weight.assign(n, w);
  return c;
}

const Candidate& candidate(const std::vector<Candidate>& tried, const std::string& name, int chunks) {
  for (const Candidate& c : tried)
    if (c.name == name && c.chunks == chunks) return c;
  FAIL("no candidate " << name);
  return tried[0];
}

}  // namespace

TEST_CASE("layers are split so that the largest stage is as small as any split can make it", "[pipeline]") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 4000; ++round) {
    const int n = 1 + static_cast<int>(random() % 11), stages = 1 + static_cast<int>(random() % n);
    std::vector<double> costs;
    for (int i = 0; i < n; ++i)
      costs.push_back(static_cast<double>(round % 2 ? random() % 9 : 1 + (random() % 7) * (random() % 7)));
    const double first = static_cast<double>(random() % 12), last = static_cast<double>(random() % 20);
    const std::vector<int> split = split_layers(costs, first, last, stages);
    REQUIRE(static_cast<int>(split.size()) == stages);
    REQUIRE(*std::min_element(split.begin(), split.end()) >= 1);
    REQUIRE(std::accumulate(split.begin(), split.end(), 0) == n);
    const std::vector<double> sums = stage_sums(costs, first, last, split);
    REQUIRE(*std::max_element(sums.begin(), sums.end()) == Approx(brute_force(costs, first, last, stages)));
  }
}

TEST_CASE("equal layers are split evenly, with the smaller stages first", "[pipeline]") {
  const auto split = [](int n, int stages, double first, double last) {
    return split_layers(std::vector<double>(n, 1), first, last, stages);
  };
  CHECK(split(8, 4, 0, 0) == std::vector<int>{2, 2, 2, 2});
  CHECK(split(10, 4, 0, 0) == std::vector<int>{2, 2, 3, 3});
  CHECK(split(12, 4, 0, 2) == std::vector<int>{3, 3, 4, 2});
  CHECK(split(9, 3, 1, 2) == std::vector<int>{3, 4, 2});
  CHECK(split(5, 1, 3, 4) == std::vector<int>{5});
  CHECK(split(4, 4, 0, 9) == std::vector<int>{1, 1, 1, 1});
  CHECK_THROWS_WITH(split(3, 4, 0, 0),
                    "3 layers make at least 1 and at most 3 pipeline stages, and 4 are asked for");
  CHECK_THROWS_AS(split(3, 0, 0, 0), Error);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<int> large = split(2000, 500, 0.5, 3);
  CHECK(std::accumulate(large.begin(), large.end(), 0) == 2000);
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 5 * time_scale());
}

TEST_CASE("a split by hand is checked", "[pipeline]") {
  CHECK(split_rule({3, 4, 5}, 12, 3) == "");
  CHECK(split_rule({3, 4}, 12, 3) == "has 2 numbers, and there are 3 stages; give one for each");
  CHECK(split_rule({3, 4, 6}, 12, 3) == "makes 13 layers in all, and the model has 12; take away 1");
  CHECK(split_rule({3, 4, 4}, 12, 3) == "makes 11 layers in all, and the model has 12; add 1");
  CHECK(split_rule({0, 6, 6}, 12, 3) == "gives stage 0 0 layers; every stage needs at least 1 of the 12");
  CHECK(split_rule({INT64_MAX, INT64_MAX, 2}, 12, 3).find("every stage needs") != std::string::npos);
  CHECK(stage_sums({1, 2, 3, 4}, 10, 20, {1, 3}) == std::vector<double>{11, 29});
}

TEST_CASE("auto takes the fastest schedule that fits, and shows what it tried", "[pipeline]") {
  const LayerCosts model = layers(16);
  const Choice free = choose_schedule(model, 4, 8);
  REQUIRE_FALSE(free.tried.empty());
  CHECK(free.tried[0].chosen);
  CHECK(free.schedule.name == free.tried[0].name);
  for (const Candidate& c : free.tried)
    if (c.refused.empty()) CHECK(free.tried[0].step <= c.step * (1 + 1e-9));
  // Every figure is what the simulator says of the schedule itself.
  for (const Candidate& c : free.tried) {
    if (!c.refused.empty()) continue;
    const Schedule s = make_schedule(c.name, 4, c.chunks, 8);
    const StagedCosts staged = stage_costs(model, s.rank_of_stage);
    CHECK(simulate(fill_with_weights(s, staged.costs), staged.costs).step == Approx(c.step));
  }
  // At equal times the one that keeps less: 1f1b before gpipe, zb-h1 before zb-h2.
  ChoiceOptions only;
  only.without = {"interleaved", "zb-h1", "zb-h2", "zbv", "dualpipev"};
  CHECK(choose_schedule(model, 4, 8, only).schedule.name == "1f1b");
  only.without = {"gpipe", "1f1b", "interleaved", "zbv", "dualpipev"};
  CHECK(choose_schedule(model, 4, 8, only).schedule.name == "zb-h1");

  // A tighter memory limit takes candidates out, with the rank and the figures.
  ChoiceOptions tight;
  tight.limit = {16, 12, 8, 4};  // layers: what 1f1b keeps
  const Choice small = choose_schedule(model, 4, 8, tight);
  CHECK(small.schedule.name == "1f1b");
  CHECK(candidate(small.tried, "gpipe", 1).refused == "rank 0 keeps 32, and 16 fit");
  CHECK(candidate(small.tried, "zb-h1", 1).refused == "rank 1 keeps 16, and 12 fit");
  CHECK(small.timing.step >= free.timing.step);
  tight.limit = {15, 12, 8, 4};
  CHECK_THROWS_WITH(choose_schedule(model, 4, 8, tight),
                    Contains("no pipeline schedule fits 4 ranks, 8 micro-batches and 16 layers:") &&
                        Contains("rank 0 keeps 16, and 15 fit"));
}

TEST_CASE("auto keeps to the rules and to the layers there are", "[pipeline]") {
  const Choice c = choose_schedule(layers(6), 4, 6);
  CHECK_THAT(candidate(c.tried, "interleaved", 2).refused,
             Contains("needs at least 8 layers, and there are 6"));
  CHECK_THAT(candidate(c.tried, "zbv", 2).refused, Contains("needs at least 8 layers"));
  const Choice d = choose_schedule(layers(8), 4, 6);
  CHECK_THAT(candidate(d.tried, "interleaved", 2).refused, Contains("needs a multiple of its 4 ranks"));
  CHECK_THAT(candidate(d.tried, "dualpipev", 2).refused, Contains("nearest valid number: 8"));
  CHECK(candidate(d.tried, "zbv", 2).refused == "");
  CHECK_THROWS_WITH(choose_schedule(layers(3), 4, 6), Contains("needs at least 4 layers, and there are 3"));
  // One rank: every schedule takes as long.
  CHECK(choose_schedule(layers(4), 1, 4).timing.bubble_share == Approx(0).margin(1e-12));
  const std::string table = choice_table(d.tried);
  CHECK(std::count(table.begin(), table.end(), '\n') == static_cast<long>(d.tried.size()) + 1);
  CHECK(std::count(table.begin(), table.end(), '*') == 1);
}

TEST_CASE("a heavy output layer moves layers to the earlier stages", "[pipeline]") {
  LayerCosts model = layers(12);
  model.last_forward = model.last_input = model.last_weight = 3;
  model.first_activation = 2;
  const StagedCosts s = stage_costs(model, {0, 1, 2});
  CHECK(s.layers == std::vector<int>{5, 5, 2});
  CHECK(s.costs.forward == std::vector<double>{5, 5, 5});
  CHECK(s.costs.activation == std::vector<double>{7, 5, 2});
  const StagedCosts by_hand = stage_costs(model, {0, 1, 2}, {4, 4, 4});
  CHECK(by_hand.costs.weight == std::vector<double>{4, 4, 7});
  ChoiceOptions o;
  o.counts = {4, 4, 4};
  o.without = {"interleaved", "zbv", "dualpipev"};
  CHECK(choose_schedule(model, 3, 6, o).staged.layers == o.counts);
}

TEST_CASE("ranks that hold several stages are made to cost alike", "[pipeline]") {
  const std::vector<int> v{0, 1, 1, 0};
  const std::vector<double> costs(12, 1);
  // A heavy output layer lies on the rank that has the first stage too.
  const std::vector<int> split = split_layers(costs, 0, 4, 4);
  CHECK(split == std::vector<int>{3, 4, 4, 1});  // at most 5 stages (4 and the output layer are one stage)
  const std::vector<int> balanced = balance_ranks(costs, 0, 4, split, v);
  const std::vector<double> sums = stage_sums(costs, 0, 4, balanced);
  CHECK(sums[0] + sums[3] == Approx(8));
  CHECK(sums[1] + sums[2] == Approx(8));
  CHECK(balance_ranks(costs, 0, 4, split, {0, 1, 2, 3}) == split);
}

TEST_CASE("like layers are balanced as well as by trying every move of one", "[pipeline]") {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int moved = 0;
  for (int round = 0; round < 200; ++round) {
    const int ranks = pick(2, 6), chunks = pick(2, 3), stages = ranks * chunks;
    std::vector<int> placed(static_cast<size_t>(stages)), counts(placed.size(), 1);
    for (int i = 0; i < stages; ++i)
      placed[static_cast<size_t>(i)] =
          i / ranks % 2 == 1 && round % 2 == 1 ? ranks - 1 - i % ranks : i % ranks;
    int layers = stages;
    for (int more = pick(0, 3 * stages); more > 0; --more, ++layers)
      ++counts[static_cast<size_t>(pick(0, stages - 1))];
    std::vector<double> costs(static_cast<size_t>(layers), 0.7);
    if (round % 3 > 0) costs.front() = 0.6;  // costs without the part before a layer
    if (round % 3 > 1) costs.back() = 0.85;
    const double first = 0.1 * pick(0, 9), last = 0.3 * pick(0, 9);
    const auto value = [&](const std::vector<int>& split) {
      std::vector<double> of(static_cast<size_t>(ranks));
      const std::vector<double> sums = stage_sums(costs, first, last, split);
      for (size_t s = 0; s < sums.size(); ++s) of[static_cast<size_t>(placed[s])] += sums[s];
      double most = 0, squares = 0;
      for (double x : of) most = std::max(most, x), squares += x * x;
      return std::pair(most, squares);
    };
    std::vector<int> plain = counts;
    for (bool improves = true; improves;) {
      improves = false;
      std::vector<int> best = plain;
      for (size_t from = 0; from < plain.size(); ++from)
        for (size_t to = 0; to < plain.size(); ++to) {
          if (plain[from] == 1) continue;
          std::vector<int> next = plain;
          --next[from], ++next[to];
          const auto a = value(next), b = value(best);
          if (a.first < b.first - 1e-9 || (a.first < b.first + 1e-9 && a.second < b.second - 1e-9))
            best = next, improves = true;
        }
      plain = best;
    }
    const std::vector<int> balanced = balance_ranks(costs, first, last, counts, placed);
    moved += balanced != counts;
    CHECK(value(balanced).first == Approx(value(plain).first).epsilon(1e-9));
    CHECK(value(balanced).second == Approx(value(plain).second).epsilon(1e-9));
  }
  CHECK(moved > 100);
}

TEST_CASE("W is placed where a rank waits: never slower, no more kept at most, still runs", "[pipeline]") {
  std::mt19937_64 random(11);
  int faster = 0;
  for (int round = 0; round < 300; ++round) {
    const char* names[] = {"zb-h1", "zb-h2", "zbv", "dualpipev", "1f1b"};
    const std::string name = names[round % 5];
    const int p = 1 + static_cast<int>(random() % 6), m = 2 * p + static_cast<int>(random() % 9);
    const Schedule s = make_schedule(name, p, 0, m);
    StageCosts c = StageCosts::uniform(s.stages());
    for (auto* v : {&c.forward, &c.input, &c.weight})
      for (double& x : *v) x = 0.5 + static_cast<double>(random() % 100) / 50;
    if (round % 3 == 0)
      for (int i = 0; i < s.stages(); ++i)
        c.activation.push_back(0.2 + static_cast<double>(random() % 100) / 30);
    if (round % 2 == 0) c.transfer.assign(static_cast<size_t>(p) * p, 0.1);
    const Timing before = simulate(s, c);
    const Schedule filled = fill_with_weights(s, c);
    const Timing after = simulate(filled, c);  // checks it, too
    INFO(name << " p " << p << " m " << m << " round " << round);
    REQUIRE(after.makespan <= before.makespan * (1 + 1e-9));
    const auto most = [](const Timing& t) {
      return *std::max_element(t.peak_kept.begin(), t.peak_kept.end());
    };
    REQUIRE(most(after) <= most(before) * (1 + 1e-9));
    faster += after.makespan < 0.999 * before.makespan;
    if (name == "1f1b") REQUIRE(filled.order == s.order);
  }
  CHECK(faster > 50);
  // With the papers' costs there is nothing to gain once there are enough micro-batches.
  const Schedule h1 = make_schedule("zb-h1", 4, 1, 8);
  CHECK(fill_with_weights(h1, StageCosts::uniform(4)).order == h1.order);
}
