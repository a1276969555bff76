// model.moe.router.freeze_step through the program: restarts before and after the step, under other layouts.
#include <catch2/catch.hpp>

#include "tests/app/outcomes.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;

namespace {

/// Eight steps of a model with experts in both layers, in fp64; token ids choose from step 5 on.
const std::string kFrozen =
    "run tiny.yaml model.architecture=qwen3_moe model.moe.num_experts=4 model.moe.top_k=2 "
    "model.moe.intermediate_size=32 train.train_steps=8 train.eval_interval=0 checkpoint.save_interval=0 "
    "optimizer.lr=0.02 precision=fp64 model.moe.router.freeze_step=5 train.routing_probe_interval=2 "
    "train.routing_probe_samples=5 ";
const std::string kTwoRanks = "parallel.data=2 parallel.expert=2 parallel.zero_stage=1 ";

/// Values of a metric in the order of steps; null is below 0.
std::vector<double> values(const TempRun& t, const std::string& name, const std::string& run) {
  std::vector<double> all;
  for (const std::string& record : t.metric(name, run)) {  // "STEP:VALUE"
    const std::string value = record.substr(record.find(':') + 1);
    all.push_back(value == "null" ? -1 : std::stod(value));
  }
  return all;
}

}  // namespace

TEST_CASE("scores of token ids that do not train are refused before the first step") {
  TempRun t;
  const std::string frozen = "'optimizer.frozen=[\"*token_scores*\"]' ";
  const Outcome o = t.sh(kFrozen + kOneRank + frozen + "output_dir=random");
  INFO(o.text);
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Catch::Contains("model.layers.0.mlp.gate.token_scores.weight does not train") &&
                         !Catch::Contains("step 1/"));
}

TEST_CASE("a frozen router: restarts under other layouts go on with its choices, which change no more") {
  TempRun t;
  succeeds(t, kFrozen + kOneRank + "output_dir=whole");
  succeeds(t, kFrozen + kTwoRanks + "output_dir=parts train.stop_step=3");
  succeeds(t, kFrozen + kOneRank + "output_dir=parts train.stop_step=6");
  succeeds(t, kFrozen + kTwoRanks + "output_dir=parts");
  const std::vector<double> whole = values(t, "lm_loss", "whole"), parts = values(t, "lm_loss", "parts");
  REQUIRE(whole.size() == 8);
  REQUIRE(parts.size() == 8);
  for (size_t i = 0; i < 8; ++i) CHECK(parts[i] == Approx(whole[i]).epsilon(1e-10));
  CHECK(whole[7] < whole[0] - 0.1);
  for (const char* run : {"whole", "parts"}) {
    const std::vector<double> churn = values(t, "routing_churn", run);  // after steps 2, 4, 6 and 8
    REQUIRE(churn.size() == 4);
    CHECK(churn[0] < 0);
    CHECK(churn[1] > 0);
    CHECK(churn[2] > 0);
    CHECK(churn[3] == 0);
    const std::vector<double> taught = values(t, "router_distillation_loss", run);
    REQUIRE(taught.size() == 8);
    CHECK(taught[3] > 2);
    CHECK(taught[4] == 0);
  }
}
