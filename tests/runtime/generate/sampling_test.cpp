// Sampling: properties of temperature, top-k and top-p over many draws.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>

#include "runtime/generate/session.h"

using namespace ltrain;

namespace {

const std::vector<float> kLogits{0.0f, 2.0f, -1.0f, 1.0f, 2.0f, -20.0f};  // 1 and 4 tie for the likeliest

std::map<int32_t, int> draws(const SamplingOptions& o, int n = 20000,
                             const std::vector<float>& logits = kLogits) {
  std::map<int32_t, int> count;
  for (int i = 0; i < n; ++i) ++count[sample_token(logits, o, static_cast<uint64_t>(i))];
  return count;
}

std::set<int32_t> seen(const std::map<int32_t, int>& count) {
  std::set<int32_t> out;
  for (const auto& [token, n] : count) out.insert(token);
  return out;
}

SamplingOptions options(double temperature, int64_t top_k = 0, double top_p = 1.0, uint64_t seed = 1) {
  SamplingOptions o;
  o.temperature = temperature, o.top_k = top_k, o.top_p = top_p, o.seed = seed;
  return o;
}

}  // namespace

TEST_CASE("temperature 0 takes the likeliest, the lower id of equals, whatever else is asked", "[generate]") {
  for (int64_t k : {0, 1, 3})
    for (double p : {0.0, 0.5, 1.0})
      for (uint64_t seed : {1, 2}) CHECK(seen(draws(options(0, k, p, seed), 50)) == std::set<int32_t>{1});
  CHECK(seen(draws(options(1.0, 1), 200)) == std::set<int32_t>{1});       // top-k of one
  CHECK(seen(draws(options(1.0, 0, 0.0), 200)) == std::set<int32_t>{1});  // top-p of nothing keeps one
}

TEST_CASE("draws have the softmax's frequencies at every temperature", "[generate]") {
  for (double temperature : {0.5, 1.0, 2.0}) {
    const int n = 40000;
    const auto count = draws(options(temperature), n);
    double sum = 0;
    for (float l : kLogits) sum += std::exp(l / temperature);
    double chi2 = 0;
    for (size_t i = 0; i < kLogits.size(); ++i) {
      const double expected = n * std::exp(kLogits[i] / temperature) / sum;
      if (expected < 1) continue;
      const auto it = count.find(static_cast<int32_t>(i));
      const double got = it == count.end() ? 0 : it->second;
      chi2 += (got - expected) * (got - expected) / expected;
    }
    INFO("temperature " << temperature);
    CHECK(chi2 < 25);  // 4 or 5 degrees of freedom; the draws are always the same ones
    // Negative control: another temperature's frequencies do not fit.
    double wrong = 0, wrong_sum = 0;
    for (float l : kLogits) wrong_sum += std::exp(l / (temperature * 1.5));
    for (int32_t i : {0, 1, 2, 3, 4}) {
      const double expected = n * std::exp(kLogits[i] / (temperature * 1.5)) / wrong_sum;
      const auto it = count.find(i);
      wrong += std::pow((it == count.end() ? 0 : it->second) - expected, 2) / expected;
    }
    CHECK(wrong > 100);
  }
}

TEST_CASE("top-k keeps the k likeliest, top-p the fewest that reach p, after temperature", "[generate]") {
  CHECK(seen(draws(options(1, 2))) == std::set<int32_t>{1, 4});
  CHECK(seen(draws(options(1, 3))) == std::set<int32_t>{1, 3, 4});
  CHECK(seen(draws(options(5, 4))) == std::set<int32_t>{0, 1, 3, 4});
  CHECK(seen(draws(options(1, 100))) == seen(draws(options(1))));
  // Softmax at temperature 1: 1 and 4 have 0.40 each, 3 has 0.15, 0 has 0.05, 2 has 0.02.
  CHECK(seen(draws(options(1, 0, 0.3))) == std::set<int32_t>{1});
  CHECK(seen(draws(options(1, 0, 0.5))) == std::set<int32_t>{1, 4});
  CHECK(seen(draws(options(1, 0, 0.9))) == std::set<int32_t>{1, 3, 4});
  CHECK(seen(draws(options(1, 0, 0.97))) == std::set<int32_t>{0, 1, 3, 4});
  CHECK(seen(draws(options(1, 0, 0.6))) == std::set<int32_t>{1, 4});
  CHECK(seen(draws(options(4, 0, 0.6))) == std::set<int32_t>{1, 3, 4});  // flatter: more are needed
  // Top-k leaves only 1 and 4, so one of them reaches 0.45.
  CHECK(seen(draws(options(1, 2, 0.45))) == std::set<int32_t>{1});
  CHECK(seen(draws(options(1, 2, 0.55))) == std::set<int32_t>{1, 4});
}

TEST_CASE("draws are a function of seed and index", "[generate]") {
  CHECK(draws(options(1, 0, 1, 7), 500) == draws(options(1, 0, 1, 7), 500));
  int same = 0;
  for (uint64_t i = 0; i < 200; ++i)
    same += sample_token(kLogits, options(1, 0, 1, 7), i) == sample_token(kLogits, options(1, 0, 1, 8), i);
  CHECK(same > 20);
  CHECK(same < 150);  // another seed, other draws
}

TEST_CASE("one token, equal tokens, and logits that differ by hundreds", "[generate]") {
  CHECK(sample_token({5.0f}, options(1), 3) == 0);
  CHECK(seen(draws(options(1), 2000, {1.0f, 1.0f, 1.0f})) == std::set<int32_t>{0, 1, 2});
  CHECK(seen(draws(options(1), 2000, {1000.0f, -1000.0f})) == std::set<int32_t>{0});
  CHECK(seen(draws(options(1e-6), 2000, {1.0f, 1.001f})) == std::set<int32_t>{1});
}

TEST_CASE("a logit that is not a number is refused", "[generate]") {
  for (const double temperature : {0.0, 1.0})
    CHECK_THROWS_WITH(sample_token({1.0f, NAN, 0.0f}, options(temperature), 0),
                      Catch::Contains("token 1 is not a number"));
}
