// A step whose loss is NaN: the error names tensor, rank, step and micro-batch, and the batch is kept.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "base/json/json.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

TEST_CASE("a NaN in a weight of one rank is named with tensor, rank and micro-batch, and the batch is kept") {
  TempRun t;
  const int rank = GENERATE(0, 1);
  const Outcome o =
      t.sh("run tiny.yaml parallel.zero_stage=0", fmt::format("LTRAIN_FAULT=train.loss:{}:3:nan", rank));
  INFO(o.text);
  CHECK(o.code == 76);
  CHECK_THAT(o.text,
             Contains("step 3: loss") &&
                 Contains(fmt::format("Before the step a weight was NaN or infinite: "
                                      "model.embed_tokens.weight of rank {} on host ",
                                      rank)) &&
                 Contains(", 1 of 8224 values") &&
                 Contains(fmt::format("in micro-batch 1 of 2, with the data of rank {} on host ", rank)) &&
                 Contains("A summed gradient is NaN or infinite: ") &&
                 Contains("Each rank's part of the batch: run/not-finite/step-00000003"));
  for (int r : {0, 1}) {
    const auto kept = nlohmann::json::parse(
        read_file(fmt::format("{}/run/not-finite/step-00000003/rank-{:05d}.json", t.folder(), r)));
    CHECK(kept.at("step") == 3);
    CHECK(kept.at("rank") == r);
    REQUIRE(kept.at("micro_batches").size() == 2);
    CHECK(kept.at("micro_batches")[0].at("tokens").size() == 64);
    CHECK(kept.at("micro_batches")[1].at("samples").size() == 2);
  }
}

TEST_CASE("a NaN in a weight is named under tensor and pipeline parallelism, and all ranks end") {
  TempRun t;
  struct Case {
    std::string layout, weight, activation;
  };
  const auto [layout, weight, activation] = GENERATE(
      Case{"parallel.tensor=2", "model.embed_tokens.weight of rank 1", "on rank 1 on host "},
      Case{"parallel.pipeline=2 parallel.zero_stage=0", "model.layers.1.mlp.down_proj.weight of rank 1",
           "the output of layer 1: 64 of 2048 values, on rank 1 on host "});
  const Outcome o =
      t.sh(fmt::format("run tiny.yaml parallel.data=1 {}", layout), "LTRAIN_FAULT=train.loss:1:3:nan");
  INFO(layout << "\n" << o.text);
  CHECK(o.code == 76);
  CHECK_THAT(o.text, Contains("a weight was NaN or infinite: ") && Contains(weight) &&
                         Contains("in micro-batch 1 of 4.") &&
                         Contains("The first such activation there is ") && Contains(activation));
}

TEST_CASE(
    "a loss that overflows names no weight, but micro-batch and layer, and a finite run keeps no batch") {
  TempRun t;
  // The first update makes weights of 1e19, which are numbers; products of them overflow. Or those of the
  // output layer alone become 3e37.
  const auto [rates, place] = GENERATE(
      std::pair("optimizer.lr=1e19", "The first such activation there is in the feed-forward of layer 0: "),
      std::pair("'optimizer.groups=[{match: \"lm_head*\", lr: 3.0e+37}]'",
                "The activations of all layers are finite there: the value comes from the output layer"));
  const Outcome o =
      t.sh(fmt::format("run tiny.yaml {} train.clip_grad=0 schedule.lr_warmup_steps=0 "
                       "parallel.zero_stage=0 train.eval_interval=0",
                       rates));
  INFO(o.text);
  CHECK(o.code == 76);
  CHECK_THAT(o.text, Contains("Before the step all weights that were read had usual values.") &&
                         Contains(" of 2, with the data of rank ") && Contains(place));
  TempRun good;
  CHECK(good.sh("run tiny.yaml").code == 0);
  CHECK_FALSE(std::filesystem::exists(good.folder() + "/run/not-finite"));
}
