// Calls of the ranks of a group, compared before a run.
#include "runtime/plan/same_calls.h"

#include <catch2/catch.hpp>
#include <set>

#include "base/error.h"
#include "base/fault_point.h"
#include "runtime/plan/make_plan.h"
#include "tests/runtime/plan/tiny_recipe.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

/// A model whose heads and units 2, 3, 4 and 6 divide.
Recipe divisible(int ranks, const std::vector<std::string>& overrides) {
  std::vector<std::string> all{"model.hidden_size=48", "model.intermediate_size=96",
                               "model.num_attention_heads=12", "train.global_batch_size=48"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return tiny_recipe(ranks, all);
}

void compare(const Recipe& r) {
  check_same_calls(r, builtin_profile(2), pipeline_layout(r, builtin_profile(2)), ranks_to_compare(r));
}

std::string calls_refusal(const Recipe& r) {
  try {
    compare(r);
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::internal);
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("ranks of every group make the same calls on grids of three and four rows, by turns", "[plan]") {
  struct Grid {
    int ranks, rows, depth;
  };
  for (const Grid& g : {Grid{4, 2, 1}, Grid{9, 3, 1}, Grid{16, 4, 1}, Grid{18, 3, 2}}) {
    std::vector<std::string> grid{fmt::format("parallel.tensor={}", g.ranks),
                                  std::string("parallel.tensor_mode=") + (g.depth > 1 ? "2.5d" : "2d"),
                                  fmt::format("train.micro_batch_size={}", g.rows * g.depth),
                                  "parallel.overlap_micro_batches=on"};
    if (g.depth > 1) grid.push_back(fmt::format("parallel.tensor_depth={}", g.depth));
    const Recipe r = divisible(g.ranks, grid);
    INFO(g.ranks << " ranks");
    REQUIRE(micro_batches_per_step(r) > 1);
    CHECK(calls_refusal(r) == "");
    CHECK_NOTHROW(make_plan(r, builtin_profile(2)));
  }
}

TEST_CASE("ranks of every group make the same calls on every axis", "[plan]") {
  for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
           {"parallel.tensor=4", "parallel.sequence_parallel=true"},
           {"parallel.tensor=8", "parallel.tensor_mode=3d", "train.micro_batch_size=4"},
           {"parallel.context=3", "data.seq_length=48"},
           {"parallel.context=4", "parallel.context_comm=a2a"},
           {"parallel.pipeline=3", "parallel.schedule=zb-h1"},
           {"parallel.pipeline=3", "parallel.tensor=2"},
           {"parallel.data=4", "parallel.zero_stage=3"},
           {"parallel.data=3", "parallel.zero_stage=1", "optimizer.kind=muon"},
           {"parallel.data=4", "parallel.expert=4", "model.moe.num_experts=4"},
           {"parallel.data=4", "parallel.shard_group=2", "parallel.zero_stage=2", "train.eval_interval=5",
            "data.eval=[{path: x}]"}}) {
    int ranks = 1;
    for (const std::string& s : layout)
      for (const char* axis :
           {"parallel.tensor=", "parallel.context=", "parallel.pipeline=", "parallel.data="})
        if (s.starts_with(axis)) ranks *= std::stoi(s.substr(std::string(axis).size()));
    INFO(layout[0] << " " << layout.back());
    CHECK(calls_refusal(divisible(ranks, layout)) == "");
  }
}

TEST_CASE("negative control: a rank that calls with another size is refused, and both are named", "[plan]") {
  const Recipe r = divisible(3, {"parallel.data=3", "parallel.zero_stage=2"});
  CHECK(calls_refusal(r) == "");
  arm_faults("collective.enter:*:7:corrupt");
  const std::string text = calls_refusal(r);
  arm_faults("");
  INFO(text);
  CHECK_THAT(text, Contains("placement error: ranks of group \"") &&
                       Contains("make different calls: rank ") && Contains(" of the job makes ") &&
                       Contains("fix: all ranks of a group must make"));
}

TEST_CASE("ranks that are compared are all of a small job, and few of a large one", "[plan]") {
  const std::vector<int> small = ranks_to_compare(divisible(6, {"parallel.data=6"}));
  CHECK(small == std::vector<int>{0, 1, 2, 3, 4, 5});
  const std::vector<int> grid = ranks_to_compare(
      divisible(9, {"parallel.tensor=9", "parallel.tensor_mode=2d", "train.micro_batch_size=3"}));
  CHECK(grid.size() == 9);
  const std::vector<int> large =
      ranks_to_compare(divisible(3072, {"parallel.tensor=4", "parallel.pipeline=3", "parallel.data=256",
                                        "train.global_batch_size=3072"}));
  CHECK(large.size() < 40);
  CHECK(std::set<int>(large.begin(), large.end()).count(0) == 1);
}
