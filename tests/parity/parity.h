// Two runs of one job under different layouts, compared.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/tiny_job.h"

namespace ltrain::test {

/// Largest difference relative to the largest value, tensor by tensor.
inline double worst_relative(const NamedTensors& a, const NamedTensors& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, largest = 0;
  for (const auto& [name, x] : a)
    for (double v : x) largest = std::max(largest, std::abs(v));
  for (const auto& [name, x] : a) {
    INFO(name);
    REQUIRE(b.count(name) == 1);
    const std::vector<double>& y = b.at(name);
    REQUIRE(x.size() == y.size());
    double scale = 1e-3 * largest, apart = 0;  // a key bias has no gradient but rounding
    for (size_t i = 0; i < x.size(); ++i) {
      scale = std::max(scale, std::abs(x[i]));
      apart = std::max(apart, std::abs(x[i] - y[i]));
    }
    worst = std::max(worst, apart / scale);
  }
  return worst;
}

/// Losses, norms, the gradients of the first step and, in fp64, all parameters after the last. Adam divides
/// the rounding of gradients that are zero (those of key biases, about 1e-17) by its epsilon of 1e-8:
/// parameters may be a hundred times further apart, and in fp32 they say nothing.
inline void require_parity(const TinyResult& one, const TinyResult& many, double tolerance) {
  REQUIRE(one.losses.size() == many.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i) {
    CHECK(std::abs(one.losses[i] - many.losses[i]) <= tolerance * std::abs(one.losses[i]));
    CHECK(std::abs(one.norms[i] - many.norms[i]) <= tolerance * 10 * std::abs(one.norms[i]));
  }
  CHECK(std::abs(one.eval_loss - many.eval_loss) <= tolerance * std::abs(one.eval_loss));
  CHECK(worst_relative(one.gradients, many.gradients) <= tolerance * 10);
  if (tolerance < 1e-8) CHECK(worst_relative(one.parameters, many.parameters) <= tolerance * 100);
}

/// Two ways that must not differ in a bit. (Of many values it is said whether they are equal, not each of
/// them.)
inline void check_same_bits(const TinyResult& a, const TinyResult& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  CHECK(a.eval_loss == b.eval_loss);
  const bool gradients = a.gradients == b.gradients, parameters = a.parameters == b.parameters;
  CHECK(gradients);
  CHECK(parameters);
}

/// Where lists of ops (TinyResult::plan_ops) first differ; empty: nowhere. Some numbers and paddings are
/// zeroed without a plan.
inline std::string op_difference(std::vector<std::string> plan, std::vector<std::string> used) {
  for (auto* list : {&plan, &used})
    std::erase_if(*list, [](const std::string& op) { return op.ends_with(" fill_zero"); });
  for (size_t i = 0; i < std::max(plan.size(), used.size()); ++i) {
    const std::string a = i < plan.size() ? plan[i] : "(end)", b = i < used.size() ? used[i] : "(end)";
    if (a != b) return fmt::format("entry {}: planned {}, run {}", i, a, b);
  }
  return "";
}

}  // namespace ltrain::test
