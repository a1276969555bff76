// A step whose loss is NaN: the error names tensor, rank, step and micro-batch, and the batch is kept.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

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
        read_text(fmt::format("{}/run/not-finite/step-00000003/rank-{:05d}.json", t.folder(), r)));
    CHECK(kept.at("step") == 3);
    CHECK(kept.at("rank") == r);
    REQUIRE(kept.at("micro_batches").size() == 2);
    CHECK(kept.at("micro_batches")[0].at("tokens").size() == 64);
    CHECK(kept.at("micro_batches")[1].at("samples").size() == 2);
  }
}

TEST_CASE("a NaN in a weight is named under tensor and pipeline parallelism, and all ranks end") {
  TempRun t;
  const auto [layout, weight] =
      GENERATE(std::pair("parallel.tensor=2", "model.embed_tokens.weight of rank 1"),
               std::pair("parallel.pipeline=2 parallel.zero_stage=0",
                         "model.layers.1.mlp.down_proj.weight of rank 1"));
  const Outcome o =
      t.sh(fmt::format("run tiny.yaml parallel.data=1 {}", layout), "LTRAIN_FAULT=train.loss:1:3:nan");
  INFO(layout << "\n" << o.text);
  CHECK(o.code == 76);
  CHECK_THAT(o.text, Contains("a weight was NaN or infinite: ") && Contains(weight) &&
                         Contains("in micro-batch 1 of 4."));
}

TEST_CASE("a loss that overflows names no weight, but the micro-batch, and a finite run keeps no batch") {
  TempRun t;
  // The first update makes weights of 1e19, which are numbers; products of them overflow.
  const Outcome o = t.sh(
      "run tiny.yaml optimizer.lr=1e19 train.clip_grad=0 schedule.lr_warmup_steps=0 "
      "parallel.zero_stage=0 train.eval_interval=0");
  INFO(o.text);
  CHECK(o.code == 76);
  CHECK_THAT(o.text, Contains("Before the step all weights that were read had usual values.") &&
                         Contains(" of 2, with the data of rank "));
  TempRun good;
  CHECK(good.sh("run tiny.yaml").code == 0);
  CHECK_FALSE(std::filesystem::exists(good.folder() + "/run/not-finite"));
}
