#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/train/expert_report.h"

using namespace ltrain;

TEST_CASE("metrics of experts: drop rate and entropy over layers that have experts") {
  ExpertStatistics s;
  s.chosen = {{}, {10, 10}, {20, 0}};
  s.kept = {{}, {10, 5}, {15, 0}};
  StepMetrics m;
  add_expert_metrics(m, s, 16);
  CHECK(m.drop_rate == Approx(0.25));
  CHECK(m.expert_load_entropy == Approx(0.5));
  CHECK(m.experts_per_token == Approx(40.0 / (2 * 16)));
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

TEST_CASE("metrics of a budget of rows: the share beyond it, and slices by layer") {
  ExpertStatistics s;
  s.chosen = {{}, {10, 10}, {20, 0}};
  s.kept = {{}, {10, 10}, {16, 0}};
  StepMetrics m;
  add_expert_metrics(m, s, 16);
  CHECK(m.slices_beyond_budget_by_layer.empty());  // there is none
  s.beyond_rows = {0, 3, 6};
  s.beyond_slices = {0, 0.5, 2};
  add_expert_metrics(m, s, 16);
  CHECK(m.rows_beyond_budget == Approx(9.0 / 36));
  CHECK(m.slices_beyond_budget == Approx(1.25));
  REQUIRE(m.slices_beyond_budget_by_layer.size() == 3);
  CHECK((std::isnan(m.slices_beyond_budget_by_layer[0]) && m.slices_beyond_budget_by_layer[2] == 2));
}

TEST_CASE("a layer that is often beyond the budget of rows is named once, with the budget") {
  RowBudgetWatch watch;
  ExpertStatistics even, seldom, often;
  even.beyond_slices = {0, 0};
  seldom.beyond_slices = {0, 0.2};
  often.beyond_slices = {0, 1.5};
  std::vector<std::string> lines;
  const auto run = [&](const ExpertStatistics& s, int steps) {
    for (int i = 1; i <= steps; ++i)
      for (const std::string& l : watch.look(i, s, 1.5)) lines.push_back(l);
  };
  run(even, 3 * RowBudgetWatch::kSteps);
  run(seldom, 3 * RowBudgetWatch::kSteps);
  run(often, RowBudgetWatch::kSteps - 1);
  CHECK(lines.empty());
  run(often, 5 * RowBudgetWatch::kSteps);
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0],
             Catch::Contains("layers.1: a rank got more rows than model.moe.row_budget: 1.5 even shares") &&
                 Catch::Contains("1.50 further slices each, mean of 20 steps"));
}
