// The main job, through the real launcher: train, stop, resume, evaluate, generate.
#include <signal.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/app/run_program.h"

using namespace ltrain::test;

namespace {
bool has(const Outcome& o, const std::string& text) { return o.text.find(text) != std::string::npos; }
}  // namespace

TEST_CASE("run trains on two processes, saves, evaluates; a second start has nothing left to do") {
  TempRun t;
  INFO(t.build().text);
  REQUIRE(t.build().code == 0);
  const Outcome first = t.sh("run tiny.yaml");
  INFO(first.text);
  REQUIRE(first.code == 0);
  CHECK(has(first, "step 6/6"));
  CHECK(has(first, "eval at step 3"));
  CHECK(t.metric("lm_loss").size() == 6);
  CHECK(t.metric("eval_loss").size() == 2);
  for (const char* file : {"recipe.yaml", "plan.json", "logs/rank-00000.log", "logs/rank-00001.log", "checkpoints/step-00000006/COMMIT"})
    CHECK(std::filesystem::exists(t.folder() + "/run/" + file));
  const Outcome second = t.sh("run tiny.yaml");
  INFO(second.text);
  CHECK(second.code == 0);
  CHECK(has(second, "nothing left to do"));
  CHECK(t.sh("checkpoint verify run").code == 0);
  const Outcome sample = t.sh("generate run --prompt 'line ' --tokens 20 --json");
  INFO(sample.text);
  CHECK(sample.code == 0);
  CHECK(has(sample, "\"tokens\":["));
  CHECK(t.sh("generate run --prompt 'line ' --tokens 20 --json").text.substr(0, 2000) == sample.text.substr(0, 2000));
  CHECK(has(t.sh("eval run"), "perplexity"));
}

TEST_CASE("resume is bit for bit, and keeps the sample order on another number of ranks") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml").code == 0);
  const auto golden_loss = t.metric("lm_loss"), golden_norm = t.metric("grad_norm");
  const auto again_from_4 = [&](const std::string& overrides) {
    std::filesystem::remove_all(t.folder() + "/run/checkpoints/step-00000006");
    const Outcome o = t.sh("run tiny.yaml " + overrides);
    INFO(o.text);
    REQUIRE(o.code == 0);
    REQUIRE(has(o, "step 4"));
  };
  again_from_4("");
  CHECK(t.metric("lm_loss") == golden_loss);
  CHECK(t.metric("grad_norm") == golden_norm);
  SECTION("without ZeRO: the same bits") {
    again_from_4("parallel.zero_stage=0");
    CHECK(t.metric("lm_loss") == golden_loss);
    CHECK(t.metric("grad_norm") == golden_norm);
  }
  SECTION("on one rank and on four: the same losses to rounding") {
    for (const char* ranks : {"parallel.data=1", "parallel.data=4"}) {
      again_from_4(ranks);
      const auto now = t.metric("lm_loss");
      REQUIRE(now.size() == golden_loss.size());
      for (size_t i = 0; i < now.size(); ++i)
        CHECK(std::stod(now[i].substr(2)) == Approx(std::stod(golden_loss[i].substr(2))).epsilon(1e-6));
    }
  }
  SECTION("negative control: another seed gives other losses") {
    again_from_4("seed=99");
    CHECK(t.metric("lm_loss") != golden_loss);
  }
}

TEST_CASE("a stop signal saves and exits 75, and the next start goes on") {
  TempRun t;
  const std::string command = std::string("(") + LTRAIN_BINARY +
                              " run tiny.yaml train.train_steps=100000 train.eval_interval=0 checkpoint.save_interval=0 & p=$!; "
                              "for i in $(seq 200); do grep -q '\"step\":5[,}]' run/metrics.jsonl 2>/dev/null && break; sleep 0.05; done; ";
  const std::string signal = GENERATE(as<std::string>(), "TERM", "USR1", "INT");
  const Outcome o = t.shell(command + "kill -" + signal + " $p; wait $p; echo code $?)");
  INFO(signal << ": " << o.text);
  CHECK(has(o, "code 75"));
  CHECK(has(o, "stopped at step"));
  const Outcome list = t.sh("checkpoint list run --json");
  CHECK(has(list, "\"valid\": true"));
  const Outcome next = t.sh("run tiny.yaml train.train_steps=100000 train.eval_interval=0 train.exit_duration_in_mins=0.01");
  INFO(next.text);
  CHECK(has(next, "resuming from"));
  CHECK(next.code == 75);
}

TEST_CASE("a NaN never reaches a checkpoint, and ends the run with 76") {
  TempRun t;
  const Outcome o = t.sh("run tiny.yaml", "LTRAIN_FAULT=train.loss:0:3:nan");
  INFO(o.text);
  CHECK(o.code == 76);
  CHECK(has(o, "step 3"));
  CHECK(has(o, "not finite"));
  const auto list = nlohmann::json::parse(t.sh("checkpoint list run --json").text);
  for (const auto& c : list.at("checkpoints")) CHECK(c.at("step").get<int>() <= 2);
}

TEST_CASE("a checkpoint of another model, and a resume that cannot be met, are refused before a start") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml").code == 0);
  const Outcome other = t.sh("run tiny.yaml model.hidden_size=64 train.train_steps=8");
  INFO(other.text);
  CHECK(other.code != 0);
  CHECK(has(other, "hidden_size"));
  const Outcome missing = t.sh("run tiny.yaml checkpoint.resume=run/checkpoints/step-00000099");
  INFO(missing.text);
  CHECK(missing.code == 73);
  CHECK(has(missing, "step-00000099"));
}

TEST_CASE("a plan beyond the host's memory is refused with the itemised sum") {
  TempRun t;
  const Outcome o = t.sh("run tiny.yaml train.micro_batch_size=1000000 train.global_batch_size=2000000");
  INFO(o.text);
  CHECK(o.code == 64);
  CHECK(has(o, "exceeds this host's memory"));
  CHECK(has(o, "activations"));
}
