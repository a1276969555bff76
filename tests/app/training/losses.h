// Losses of models and of runs that must have the same ones.
#pragma once
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "base/json/json.h"
#include "tests/app/run_program.h"

namespace ltrain::test {

/// Loss of a model on the first held-out set, in fp64 on one thread; `more`: other options.
inline double eval_loss(const TempRun& t, const std::string& model, const std::string& more = "") {
  const Outcome o = t.sh("eval " + model + more + " --precision fp64 --threads 1 --json 2>/dev/null");
  INFO(o.text);
  REQUIRE(o.code == 0);
  return nlohmann::json::parse(o.text)["sets"][0]["loss"].get<double>();
}

/// Compares losses of fp64 under different layouts.
inline void check_same_losses(const std::vector<double>& got, const std::vector<double>& want) {
  REQUIRE((got.size() == want.size() && !want.empty()));
  for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - want[i]) <= 1e-12 * want[i]);
}

}  // namespace ltrain::test
