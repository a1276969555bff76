#include "runtime/data/sample_order.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "tests/runtime/data/support.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::data::test;

TEST_CASE("permutation: a bijection for every size", "[data]") {
  for (int64_t n = 1; n <= 300; ++n)
    for (uint64_t key : {0ull, 1ull, 0xdeadbeefull}) {
      const Permutation p(n, key);
      std::vector<bool> seen(n);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t v = p(i);
        REQUIRE((v >= 0 && v < n));
        REQUIRE_FALSE(seen[v]);
        seen[v] = true;
      }
    }
  const int64_t n = 1000003;
  const Permutation p(n, 42);
  std::vector<bool> seen(n);
  for (int64_t i = 0; i < n; ++i) seen[p(i)] = true;
  CHECK(std::find(seen.begin(), seen.end(), false) == seen.end());
  // Sizes whose samples do not fit a table.
  const int64_t huge = (int64_t{1} << 40) + 12345;
  const Permutation q(huge, 7);
  std::set<int64_t> values;
  for (int64_t i = 0; i < 100000; ++i) {
    const int64_t v = q(huge - 1 - i);
    REQUIRE((v >= 0 && v < huge));
    values.insert(v);
  }
  CHECK(values.size() == 100000);
}

TEST_CASE("permutation: keys give unrelated orders", "[data]") {
  // The positions of n indices over many keys are close to uniform: chi-square with n-1 degrees of freedom.
  const int n = 50, keys = 20000;
  for (int index : {0, 1, 25, 49}) {
    std::vector<int> count(n);
    for (int k = 0; k < keys; ++k) ++count[Permutation(n, k)(index)];
    double chi = 0;
    for (int c : count) chi += std::pow(c - keys / double(n), 2) / (keys / double(n));
    CHECK(chi < 49 + 5 * std::sqrt(2 * 49.0));
  }
  // Neighbours do not stay neighbours, and no rank correlation is left.
  const int64_t m = 100000;
  const Permutation p(m, 3);
  int64_t adjacent = 0;
  double correlation = 0;
  for (int64_t i = 0; i + 1 < m; ++i) {
    adjacent += std::abs(p(i + 1) - p(i)) == 1;
    correlation += (i - m / 2.0) * (p(i) - m / 2.0);
  }
  correlation /= std::pow(m, 3) / 12;
  CHECK(adjacent < 20);
  CHECK(std::abs(correlation) < 0.02);
}

TEST_CASE("blend: proportions hold everywhere and exactly per period", "[data]") {
  for (const std::vector<double>& weights : {std::vector<double>{1},
                                             {1, 1},
                                             {0.7, 0.3},
                                             {70, 30},
                                             {0.1, 0.2, 0.3, 0.4},
                                             {1, 1e-9},
                                             {3.14159, 2.71828, 1.41421},
                                             {5, 1, 1, 1, 1, 1, 1, 1, 1, 1}}) {
    const Blend blend(weights);
    double sum = 0;
    for (double w : weights) sum += w;
    std::vector<int64_t> count(weights.size());
    const int64_t n = std::min<int64_t>(3 * blend.period() + 7, 200000);
    for (int64_t i = 0; i < n; ++i) {
      const Blend::Draw d = blend(i);
      REQUIRE(d.index == count[d.source]);  // its draws are counted without a gap
      if (i % 101 == 0) REQUIRE(blend.find(d.source, d.index) == i);
      ++count[d.source];
      for (size_t s = 0; s < weights.size(); ++s) {
        const double due = blend.draws_per_period(s) / double(blend.period()) * (i + 1);
        REQUIRE(std::abs(count[s] - due) < double(weights.size()));
      }
    }
    for (size_t s = 0; s < weights.size(); ++s)
      CHECK(std::abs(blend.draws_per_period(s) / double(blend.period()) - weights[s] / sum) < 2.0 / 65536);
  }
  CHECK(Blend({0.7, 0.3}).period() == 10);
  CHECK(Blend({2, 2}).period() == 2);
}

TEST_CASE("blend: the greedy rule of Megatron within a period", "[data]") {
  // argmax of w*max(i,1) - count, ties to the first; weights 5:3:2 by hand.
  const Blend blend({0.5, 0.3, 0.2});
  const int want[10] = {0, 1, 2, 0, 1, 0, 2, 0, 1, 0};
  std::vector<int64_t> count(3);
  const double w[3] = {0.5, 0.3, 0.2};
  for (int i = 0; i < 10; ++i) {
    int best = 0;
    for (int d = 1; d < 3; ++d)
      if (w[d] * std::max(i, 1) - count[d] > w[best] * std::max(i, 1) - count[best] + 1e-9) best = d;
    ++count[best];
    INFO(i);
    CHECK(blend(i).source == best);
    CHECK(best == want[i]);
  }
}

TEST_CASE("blend: bad weights are refused", "[data]") {
  for (const std::vector<double>& w : {std::vector<double>{}, {0}, {1, -1}, {1, NAN}, {INFINITY}})
    CHECK_FALSE(error_of([&] { Blend b(w); }) == "");
}

TEST_CASE("order: each sample once an epoch, at any place", "[data]") {
  const SampleOrder order({17, 5}, {3, 1}, 1234);
  std::map<std::pair<int, int64_t>, std::set<int64_t>> epochs;
  for (int64_t g = 0; g < 4000; ++g) {
    const SampleRef r = order(g);
    const bool fresh = epochs[{r.source, r.epoch}].insert(r.sample).second;
    REQUIRE(fresh);
    REQUIRE(r.sample < (r.source == 0 ? 17 : 5));
  }
  for (const auto& [key, samples] : epochs) {
    const bool last = !epochs.contains({key.first, key.second + 1});
    if (!last) CHECK(samples.size() == (key.first == 0 ? 17u : 5u));
  }
  // The first sample of a second epoch comes where before_first_repeat() says.
  const int64_t repeat = order.before_first_repeat();
  for (int64_t g = 0; g < repeat; ++g) REQUIRE(order(g).epoch == 0);
  CHECK(order(repeat).epoch == 1);
}

TEST_CASE("order: a function of the seed, and pinned", "[data]") {
  const SampleOrder a({1000}, {1}, 7), b({1000}, {1}, 7), c({1000}, {1}, 8);
  int same = 0, same_epoch = 0;
  for (int64_t g = 0; g < 1000; ++g) {
    REQUIRE(a(g).sample == b(g).sample);
    same += a(g).sample == c(g).sample;
    same_epoch += a(g).sample == a(1000 + g).sample;
  }
  CHECK(same < 20);
  CHECK(same_epoch < 20);
  const SampleOrder plain({1000}, {1}, 7, false);
  CHECK(plain(999).sample == 999);
  CHECK(plain(1000).sample == 0);
  // These numbers are a promise: a run that resumes under a later ltrain must see the data it has not seen.
  std::vector<int64_t> first;
  for (int64_t g = 0; g < 8; ++g) first.push_back(a(g).sample);
  CHECK(first == std::vector<int64_t>{604, 686, 942, 908, 986, 486, 20, 292});
}
