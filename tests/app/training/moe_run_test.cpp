// An MoE model through the real program: upcycled from a dense run, trained on, reported.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "base/json/json.h"
#include "tests/app/outcomes.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;

TEST_CASE("a dense run becomes an MoE model, trains, resumes, and is reported") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml train.train_steps=4").code == 0);
  const std::string moe =
      "run tiny.yaml model.moe.num_experts=4 parallel.expert=2 model.moe.router.bias_update_rate=0.01 ";
  // In the dense run's folder there is a checkpoint of another model: the refusal says what there is.
  const Outcome wrong = t.sh(moe);
  INFO(wrong.text);
  CHECK(wrong.code == 64);
  CHECK(has(wrong, "give checkpoint.upcycle: run/checkpoints/step-00000004 and another output_dir"));
  const Outcome missing = t.sh(moe + "output_dir=up checkpoint.upcycle=nowhere");
  INFO(missing.text);
  CHECK(missing.code == 73);
  CHECK(has(missing, "checkpoint.upcycle = nowhere: there is no such file or folder"));
  CHECK_FALSE(std::filesystem::exists(t.folder() + "/up/logs"));  // before anything is started

  const std::string upcycled = moe + "output_dir=up checkpoint.upcycle=run train.train_steps=3 ";
  const Outcome first = t.sh(upcycled);
  INFO(first.text);
  REQUIRE(first.code == 0);
  CHECK(has(first,
            "an MoE model of 4 experts begins with the weights of run/checkpoints/step-00000004, step 4"));
  // Trained weights, not fresh ones: better than the dense run was at its first step.
  const auto loss = [&](const char* run, size_t i) {
    const std::string text = t.metric("lm_loss", run).at(i);
    return std::stod(text.substr(text.find(':') + 1));
  };
  CHECK(loss("up", 0) < loss("run", 0) - 0.01);
  const Outcome more = t.sh(upcycled + "train.train_steps=5");
  INFO(more.text);
  CHECK(more.code == 0);
  CHECK(has(more, "resuming from up/checkpoints/step-00000003"));
  CHECK_FALSE(has(more, "begins with the weights"));
  CHECK(t.metric("drop_rate_by_layer", "up").size() == 5);
  CHECK(has(t.sh("checkpoint show up --tensors"), "model.layers.1.mlp.gate.e_score_correction_bias"));
  CHECK(t.sh("eval up --threads 1").code == 0);

  // Bytes sent between experts under the actual routing, beside those of even routing.
  const auto used = nlohmann::json::parse(read_file(t.folder() + "/up/logs/usage-00000.json"));
  const auto plan = nlohmann::json::parse(read_file(t.folder() + "/up/plan.json"));
  int64_t planned = 0, others = 0;
  for (const auto& c : plan["ranks"][0]["communication"])
    (c["group"] == "ep" ? planned : others) += c["wire_bytes"].get<int64_t>();
  const int64_t sent = used["train_wire_bytes_by_group"]["ep"], steps = used["steps"];
  REQUIRE(steps == 2);
  CHECK(used["train_wire_bytes"] == sent + steps * others);  // all else is as planned
  constexpr double kMiB = 1 << 20;
  CHECK(
      has(more, fmt::format(", {:.1f} of it between experts ({:.1f} planned, for even routing)",
                            static_cast<double>(sent) / kMiB, static_cast<double>(steps * planned) / kMiB)));

  const Outcome report = t.sh("report up");
  INFO(report.text);
  CHECK(report.code == 0);
  CHECK(has(report, "up/metrics.jsonl: steps 1 to 5"));
  CHECK(has(report, "layer 1, steps 1 to 5 from left to right"));
  const auto j = nlohmann::json::parse(t.sh("report up --json").text);
  CHECK((j["schema"] == "ltrain.report.v1" && j["stretches"].size() == 5));
  CHECK(j["stretches"][4]["layers"][0]["expert_tokens"].size() == 4);
  CHECK(has(t.sh("report run"), "run/metrics.jsonl: steps 1 to 4"));
  CHECK(t.sh("report run --layer 0").code == 64);
  CHECK(t.sh("report nowhere").code == 65);
}

TEST_CASE("routers that warm up, and frozen ones that go on from a run that trained them") {
  TempRun t;
  const std::string moe = "run tiny.yaml model.moe.num_experts=4 parallel.expert=2 ";
  const Outcome warm = t.sh(moe + "train.router_warmup_steps=2 train.train_steps=4");
  INFO(warm.text);
  REQUIRE(warm.code == 0);
  const auto norms = t.metric("grad_norm");
  const auto norm = [&](size_t i) { return std::stod(norms.at(i).substr(norms[i].find(':') + 1)); };
  CHECK(norm(2) > 5 * norm(1));  // from the third step on that of all parameters
  const Outcome frozen =
      t.sh(moe + "train.freeze_router=true checkpoint.resume=run/checkpoints output_dir=tuned");
  INFO(frozen.text);
  CHECK(frozen.code == 0);
  const Outcome thawed =
      t.sh(moe + "checkpoint.resume=tuned/checkpoints output_dir=more train.train_steps=8");
  INFO(thawed.text);
  CHECK(thawed.code == 64);
  CHECK(has(thawed, "train.freeze_router: true does not"));
}
