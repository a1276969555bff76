// train.routing_probe_interval through the program: churn by hand from records of checkpoints, every layout,
// restarts.
#include <catch2/catch.hpp>

#include "tests/app/json_lines.h"
#include "tests/app/outcomes.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Four steps of a model with experts in both layers, in fp64, probed after 2 and 4.
const std::string kProbed =
    "run tiny.yaml model.architecture=qwen3_moe model.moe.num_experts=4 model.moe.top_k=2 "
    "model.moe.intermediate_size=32 train.train_steps=4 train.eval_interval=0 checkpoint.save_interval=0 "
    "optimizer.lr=0.02 precision=fp64 train.routing_probe_interval=2 train.routing_probe_samples=5 ";

std::vector<std::string> churn(const TempRun& t, const std::string& run) {
  return t.metric("routing_churn_by_layer", run);
}

}  // namespace

TEST_CASE("routing probe: churn is what records of the same checkpoints have by hand") {
  TempRun t;
  const Outcome o =
      succeeds(t, kProbed + kOneRank + "checkpoint.save_interval=2 telemetry.prometheus=run.prom");
  CHECK_THAT(o.text, Contains("every 2 steps, the choices for the first 5 sequences of data.eval are"));
  const std::string eval = "eval run/checkpoints/step-0000000", more = " --samples 5 --precision fp64 ";
  succeeds(t, eval + "2" + more + "--routing early.jsonl");
  const Outcome late =
      succeeds(t, eval + "4" + more + "--json --routing late.jsonl --routing-before early.jsonl");
  const auto before = json_lines(t, "early.jsonl"), now = json_lines(t, "late.jsonl");
  REQUIRE(before.size() == 10);  // 5 sequences, 2 layers
  std::vector<double> changed(2);
  double choices = 0;  // each layer has so many
  for (size_t i = 0; i < before.size(); ++i)
    for (size_t k = 0; k < before[i]["top_indices"].size(); ++k) {
      const auto &a = before[i]["top_indices"][k], &b = now[i]["top_indices"][k];
      choices += static_cast<double>(b.size()) / 2;
      for (const auto& e : b) changed[now[i]["layer"].get<size_t>()] += e != a[0] && e != a[1];
    }
  const std::vector<double> by_hand{changed[0] / choices, changed[1] / choices};
  CHECK(by_hand[0] + by_hand[1] > 0.01);
  const auto metrics = json_lines(t, "run/metrics.jsonl");
  std::vector<nlohmann::json> probes;
  for (const auto& line : metrics)
    if (line.contains("routing_churn")) probes.push_back(line);
  REQUIRE(probes.size() == 2);
  CHECK(probes[0] == nlohmann::json{{"step", 2},
                                    {"routing_churn", nullptr},
                                    {"routing_churn_by_layer", {nullptr, nullptr}}});
  CHECK(probes[1]["routing_churn_by_layer"].get<std::vector<double>>() == by_hand);
  CHECK(probes[1]["routing_churn"].get<double>() == (changed[0] + changed[1]) / (2 * choices));
  const auto changes = nlohmann::json::parse(late.text)["routing_changes"];
  for (size_t i = 0; i < 2; ++i) CHECK(changes[i]["choices"].get<double>() == by_hand[i]);
  const std::string page = read_file(t.folder() + "/run.prom");
  CHECK_THAT(page, Contains("ltrain_routing_churn_by_layer_ratio{run=\"tiny\",layer=\"1\"} "));
  succeeds(t, "report run --html run.html");
  CHECK_THAT(read_file(t.folder() + "/run.html"), Contains("data-churn="));
  // Programs that read the checkpoint leave the choices in it.
  succeeds(t, "eval run --samples 2");
  succeeds(t, "generate run --prompt line --tokens 2");
}

TEST_CASE("routing probe: every layout has the churn of one process") {
  TempRun t;
  succeeds(t, kProbed + kOneRank + "output_dir=one");
  const auto one = churn(t, "one");
  REQUIRE(one.size() == 2);
  int number = 0;
  for (const std::string layout :
       {"parallel.data=2 parallel.zero_stage=3", "parallel.data=2 parallel.expert=2 parallel.zero_stage=1",
        "parallel.data=1 parallel.tensor=2 parallel.zero_stage=0",
        "parallel.data=1 parallel.tensor=2 parallel.sequence_parallel=true parallel.expert=2 "
        "parallel.expert_tensor=1 parallel.zero_stage=0",
        "parallel.data=1 parallel.pipeline=2 parallel.zero_stage=0",
        "parallel.data=1 parallel.context=2 parallel.zero_stage=0",
        "parallel.data=1 parallel.zero_stage=0 train.micro_batch_size=4",
        "parallel.data=1 parallel.zero_stage=0 train.router_record=routes",
        "parallel.data=1 parallel.zero_stage=0 recompute.granularity=full"}) {
    const std::string run = "run" + std::to_string(number++);
    succeeds(t, kProbed + layout + " output_dir=" + run);
    INFO(layout);
    CHECK(churn(t, run) == one);
    CHECK(t.values("mem_peak_gib", run).back() == t.values("mem_plan_gib", run).back());
  }
}

TEST_CASE(
    "routing probe: a run that goes on, under any layout, compares with the probe before its checkpoint") {
  TempRun t;
  succeeds(t, kProbed + kOneRank + "output_dir=whole");
  const auto whole = churn(t, "whole");
  REQUIRE(whole.size() == 2);
  succeeds(t, kProbed + kOneRank + "train.stop_step=3 output_dir=stopped");
  succeeds(t, "checkpoint show stopped");
  REQUIRE(t.shell("cp -r stopped other; cp -r stopped fewer; cp -r stopped off").code == 0);
  succeeds(t, kProbed + kOneRank + "output_dir=stopped");
  CHECK(churn(t, "stopped") == whole);
  succeeds(t, kProbed + "parallel.data=2 parallel.expert=2 output_dir=other");
  CHECK(churn(t, "other") == whole);
  // Other sequences have nothing to compare with.
  const Outcome o = succeeds(t, kProbed + kOneRank + "train.routing_probe_samples=4 output_dir=fewer");
  CHECK_THAT(o.text, Contains("has no choices of a routing probe of these sequences"));
  CHECK(churn(t, "fewer")[1] == "4:[null,null]");
  // A run without a probe leaves it, and one that begins with it has none.
  succeeds(t,
           kProbed + kOneRank + "train.routing_probe_interval=0 ~train.routing_probe_samples output_dir=off");
  CHECK(churn(t, "off").size() == 1);
}

TEST_CASE("routing probe: without held-out data it reads the first sequences of the training data") {
  TempRun t;
  const Outcome o = succeeds(t, kProbed + kOneRank + "~data.eval data.train='[{path: text-val}]'");
  CHECK_THAT(o.text, Contains("the choices for the first 5 sequences of data.train are compared"));
  succeeds(t, kProbed + kOneRank + "output_dir=held_out data.train='[{path: text-val}]'");
  CHECK(churn(t, "run") == churn(t, "held_out"));
}

TEST_CASE("routing probe: zero experts are choices, and weights of a probed run bring none of its own") {
  TempRun t;
  succeeds(t, kProbed + kOneRank + "model.moe.zero_experts=2 output_dir=zero");
  CHECK(churn(t, "zero").size() == 2);
  succeeds(t, kProbed + kOneRank + "output_dir=first");
  succeeds(t,
           kProbed + kOneRank + "checkpoint.load.path=first train.routing_probe_samples=3 output_dir=fewer");
  succeeds(t, kProbed + kOneRank + "checkpoint.load.path=first output_dir=second");
  CHECK_THAT(churn(t, "second").front(), Contains("null"));
  const Outcome refused =
      t.sh(kProbed + kOneRank +
           "data.train=[text.jsonl] data.tokenizer.kind=byte data.eval=[] data.shuffle_window=1");
  CHECK(refused.code == 64);
  CHECK_THAT(refused.text, Contains("whose token files are made while it trains"));
}
