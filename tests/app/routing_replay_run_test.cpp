// train.router_record and train.router_replay through the program: two processes, other layouts, damaged and
// missing records.
#include <catch2/catch.hpp>

#include "base/json/json.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

const std::string kMoe =
    "run tiny.yaml model.architecture=qwen3_moe model.moe.num_experts=4 model.moe.top_k=2 "
    "model.moe.intermediate_size=32 train.train_steps=4 train.eval_interval=0 checkpoint.save_interval=0 "
    "optimizer.lr=0.02 precision=fp64 ";

std::vector<double> losses(const TempRun& t, const std::string& run) {
  std::vector<double> all;
  std::ifstream in(t.folder() + "/" + run + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto j = nlohmann::json::parse(line);
    if (j.contains("lm_loss")) all.push_back(j["lm_loss"]);
  }
  return all;
}

}  // namespace

TEST_CASE("routing: a record of two processes replays there to the bit, and in one process to 1e-12") {
  TempRun t;
  const auto run = [&](const std::string& more) {
    const Outcome o = t.sh(kMoe + more);
    INFO(o.text);
    REQUIRE(o.code == 0);
    return o;
  };
  const Outcome recorded = run("parallel.expert=2 train.router_record=routes output_dir=a");
  CHECK_THAT(recorded.text, Contains("routing: every step is recorded in routes, up to "));
  const auto base = losses(t, "a");
  REQUIRE(base.size() == 4);
  CHECK_THAT(run("parallel.expert=2 train.router_replay=routes output_dir=b").text,
             Contains("routing: tokens go to the experts of routes"));
  CHECK(losses(t, "b") == base);
  run("parallel.data=1 parallel.zero_stage=0 train.router_replay=routes output_dir=c");
  const auto one = losses(t, "c");
  REQUIRE(one.size() == 4);
  for (size_t i = 0; i < 4; ++i) CHECK(one[i] == Approx(base[i]).epsilon(1e-12));
  // A run of another seed has another router: its own choices, and these.
  run("seed=7 parallel.expert=2 output_dir=d");
  run("seed=7 parallel.expert=2 train.router_replay=routes output_dir=e");
  CHECK(losses(t, "d")[0] != losses(t, "e")[0]);
  // A record of fewer ranks in the same folder takes the place of the first.
  run("parallel.data=1 parallel.zero_stage=0 train.router_record=routes output_dir=f");
  run("parallel.expert=2 train.router_replay=routes output_dir=g");
}

TEST_CASE("routing: records that lack steps or are damaged are refused with file, line and rule") {
  TempRun t;
  Outcome o = t.sh(kMoe + "train.router_record=routes train.router_record_interval=2 output_dir=a");
  INFO(o.text);
  REQUIRE(o.code == 0);
  const auto refused = [&](const std::string& why) {
    const Outcome of = t.sh(kMoe + "train.router_replay=routes output_dir=b");
    INFO(of.text);
    CHECK(of.code == 65);
    CHECK_THAT(of.text, Contains(why));
  };
  refused("routes: has no record of step 1, which this run is to make (steps 1 to 4)");
  REQUIRE(t.shell("rm -r routes").code == 0);
  refused("train.router_replay: routes: cannot be read: No such file or directory");
  REQUIRE(t.sh(kMoe + "train.router_record=routes output_dir=c").code == 0);
  REQUIRE(t.shell("sed -i '3s/\"top_indices\":\\[\\[[0-9]*,/\"top_indices\":[[4,/' "
                  "routes/step-00000002/rank-00001-of-00002.jsonl")
              .code == 0);
  refused("routes/step-00000002/rank-00001-of-00002.jsonl:3: position 0, layer ");
  refused("expert 4: must be from 0 to 3");
}
