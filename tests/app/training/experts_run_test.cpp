// ltrain checkpoint experts: copies leave the model's function as it is, the least chosen experts are left
// out or merged, and runs begin with the result.
#include <catch2/catch.hpp>

#include "base/json/json.h"
#include "tests/app/run_program.h"
#include "tests/app/training/losses.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Sequences of the evaluations.
const char* const kSamples = " --samples 16";

const std::string kEightExperts =
    "run tiny.yaml model.moe.num_experts=8 model.moe.top_k=2 train.train_steps=40 train.eval_interval=0 "
    "checkpoint.save_interval=0 optimizer.lr=1e-2";

}  // namespace

TEST_CASE("experts are copied without a change of the loss, and left out or merged by their use") {
  TempRun t;
  REQUIRE(t.sh(kEightExperts).code == 0);
  REQUIRE(t.sh("eval run --samples 16 --routing routing.jsonl").code == 0);
  const double whole = eval_loss(t, "run", kSamples);
  for (const char* copies : {"2", "3"}) {
    const Outcome added =
        t.sh("checkpoint experts add run more" + std::string(copies) + " --copies " + copies + " -q");
    INFO(added.text);
    REQUIRE(added.code == 0);
    CHECK(std::abs(eval_loss(t, "more" + std::string(copies), kSamples) - whole) < 1e-12 * whole);
  }
  for (const std::string kind : {"prune", "merge"}) {
    const Outcome made =
        t.sh("checkpoint experts " + kind + " run " + kind + " --keep 4 --routing routing.jsonl --json");
    INFO(made.text);
    REQUIRE(made.code == 0);
    const auto report = nlohmann::json::parse(made.text);
    CHECK(report["settings"] == nlohmann::json{"model.moe.num_experts=4"});
    CHECK(report["kept_choices"].get<double>() > 0.5);
    CHECK(report["origins"]["0"].size() == 4);
    CHECK(eval_loss(t, kind, kSamples) > whole);
    CHECK(t.sh("checkpoint verify " + kind).code == 0);
    CHECK(t.sh(kEightExperts + " checkpoint.load.path=" + kind +
               " model.moe.num_experts=4 train.train_steps=2 output_dir=from-" + kind)
              .code == 0);
  }
  const Outcome reap =
      t.sh("checkpoint experts prune run reap --keep 4 --samples 16 --precision fp64 --json");
  INFO(reap.text);
  REQUIRE(reap.code == 0);
  const auto report = nlohmann::json::parse(reap.text);
  CHECK(report["kept_saliency"].get<double>() > 0.5);
  CHECK(eval_loss(t, "reap", kSamples) > whole);
  for (const auto& [arguments, text] :
       {std::pair("", "expected one of --routing and --samples, got neither"),
        std::pair("--samples 4 --routing routing.jsonl", "expected one of --routing and --samples, got both"),
        std::pair("--routing routing.jsonl --precision fp64",
                  "--precision: is for measurements by --samples")}) {
    const Outcome bad = t.sh(std::string("checkpoint experts prune run bad --keep 4 ") + arguments);
    INFO(bad.text);
    CHECK(bad.code == 64);
    CHECK_THAT(bad.text, Contains(text));
  }
  const Outcome missing = t.sh("checkpoint experts prune run other --keep 4 --routing none.jsonl");
  CHECK(missing.code == 65);
  CHECK_THAT(missing.text, Contains("none.jsonl"));
}
