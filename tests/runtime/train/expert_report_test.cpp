#include <catch2/catch.hpp>

#include "runtime/train/expert_report.h"

using namespace ltrain;

TEST_CASE("metrics of experts: drop rate and entropy over layers that have experts") {
  ExpertStatistics s;
  s.chosen = {{}, {10, 10}, {20, 0}};
  s.kept = {{}, {10, 5}, {15, 0}};
  StepMetrics m;
  add_expert_metrics(m, s);
  CHECK(m.drop_rate == Approx(0.25));
  CHECK(m.expert_load_entropy == Approx(0.5));
  CHECK(m.expert_tokens.size() == 3);
}

TEST_CASE("a layer whose experts starve is named once, after a while, and again after it recovered") {
  StarvationWatch watch;
  ExpertStatistics fine, bad;
  fine.chosen = {{}, {25, 25, 25, 25}};
  bad.chosen = {{}, {60, 38, 2, 0}};
  int warned = 0;
  std::string line;
  const auto run = [&](const ExpertStatistics& s, int steps) {
    for (int i = 0; i < steps; ++i)
      for (const std::string& l : watch.look(i, s)) ++warned, line = l;
  };
  run(fine, 50);
  run(bad, StarvationWatch::kSteps - 1);
  CHECK(warned == 0);
  run(bad, 30);
  CHECK(warned == 1);
  CHECK_THAT(line, Catch::Contains("layers.1: 2 of 4 experts (2, 3) had less than a tenth"));
  run(fine, 1);
  run(bad, StarvationWatch::kSteps);
  CHECK(warned == 2);
}
