// Preference training on labelled texts: `task: kto`, through the real program.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/app/run_program.h"
#include "tests/app/trl_recipe.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

void write_examples(const TempRun& t, int count = 90) {
  std::ofstream out(t.folder() + "/labelled.jsonl");
  for (int i = 0; i < count; ++i) {
    const bool good = i % 8 != 1;
    const std::string text =
        good ? " " + std::to_string(i + 1) + std::string(static_cast<size_t>(i % 4), '.') : " no, it is not";
    out << nlohmann::json{{"prompt", "What follows " + std::to_string(i) + "?"},
                          {"completion", text},
                          {"label", good}}
               .dump()
        << "\n";
  }
}

const std::string kKto =
    "run tiny.yaml task=kto 'data.train=[{path: labelled.jsonl}]' data.eval=[] train.eval_interval=0 "
    "data.cache=kto-cache data.seq_length=128 model.max_position_embeddings=128 checkpoint.save_interval=0 "
    "optimizer.lr=0.003 preference.beta=0.5 ";

/// Runs a command that writes the folder `name`, whose losses and divergences must be the expected ones.
void check_same(const TempRun& t, const std::string& command, const std::string& name,
                const std::string& expected) {
  const Outcome o = t.sh(command);
  INFO(command << "\n" << o.text);
  REQUIRE(o.code == 0);
  for (const char* key : {"lm_loss", "kl", "rewards/chosen", "rewards/rejected"}) {
    INFO(key);
    const std::vector<double> want = t.values(key, expected), got = t.values(key, name);
    REQUIRE(got.size() == want.size());
    for (size_t i = 0; i < got.size(); ++i)
      CHECK(std::abs(got[i] - want[i]) <= 1e-11 * (1 + std::abs(want[i])));
  }
}

const char* const kLayouts[] = {"parallel.data=1 parallel.zero_stage=0 train.micro_batch_size=1",
                                "parallel.data=2 train.micro_batch_size=1",
                                "parallel.data=2 parallel.zero_stage=3 train.micro_batch_size=4",
                                "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2",
                                "parallel.data=1 parallel.zero_stage=0 parallel.pipeline=2",
                                "parallel.data=1 parallel.zero_stage=0 parallel.context=2"};

}  // namespace

TEST_CASE("kto: a reference that stays in memory has the losses and divergences of one computed before") {
  TempRun t;
  write_examples(t);
  const std::string kto = kKto +
                          "precision=fp64 train.train_steps=4 'data.eval=[{path: labelled.jsonl}]' "
                          "train.eval_interval=2 train.eval_steps=1 ";
  REQUIRE(t.sh(kto + "parallel.data=1 parallel.zero_stage=0 output_dir=one").code == 0);
  CHECK(t.values("kl", "one")[3] > 0);
  int run = 0;
  for (const char* layout : {kLayouts[2], kLayouts[4]}) {
    const std::string name = "resident" + std::to_string(run++);
    check_same(t, kto + "preference.reference=resident output_dir=" + name + " " + layout, name, "one");
    const std::vector<double> want = t.values("eval_loss", "one"), got = t.values("eval_loss", name);
    REQUIRE((want.size() == 2 && got.size() == 2));
    for (size_t i = 0; i < 2; ++i) CHECK(std::abs(got[i] - want[i]) <= 1e-11 * want[i]);
  }
}

TEST_CASE("kto: a reference without adapters, in each step, has the losses and divergences of one before") {
  TempRun t;
  write_examples(t);
  const std::string kto =
      kKto +
      "precision=fp64 train.train_steps=4 optimizer.lr=0.02 lora.r=4 'data.eval=[{path: labelled.jsonl}]' "
      "train.eval_interval=2 train.eval_steps=1 ";
  REQUIRE(t.sh(kto + "parallel.data=1 parallel.zero_stage=0 output_dir=one").code == 0);
  CHECK(t.values("kl", "one")[3] > 0);
  int run = 0;
  for (const char* layout : kLayouts) {
    const std::string name = "off" + std::to_string(run++);
    check_same(t, kto + "preference.reference=adapters_off output_dir=" + name + " " + layout, name, "one");
    const std::vector<double> want = t.values("eval_loss", "one"), got = t.values("eval_loss", name);
    REQUIRE((want.size() == 2 && got.size() == 2));
    for (size_t i = 0; i < 2; ++i) CHECK(std::abs(got[i] - want[i]) <= 1e-11 * want[i]);
  }
}

TEST_CASE("kto: losses, divergences and rewards are those of TRL, with adapters of PEFT too") {
  TempRun t;
  const std::string golden = trl_folder();
  const auto want = nlohmann::json::parse(read_file(golden + "/losses.json"));
  write_trl_recipe(t, "kto", "labelled.jsonl");
  const std::map<std::string, std::string> settings = {
      {"kto", ""},
      {"weights", "preference.desirable_weight=0.5 preference.undesirable_weight=1.5"},
      {"apo_zero_unpaired", "preference.loss=apo_zero_unpaired"},
      {"reference",
       "preference.reference=resident preference.reference_model=" + golden + "/../distillation"},
      {"lora", "lora.adapter=" + golden + "/adapter lora.r=4 lora.alpha=8"}};
  for (const auto& [name, given] : settings) {
    INFO(name);
    const Outcome o = t.sh("run kto.yaml output_dir=" + name + " " + given);
    INFO(o.text);
    REQUIRE(o.code == 0);
    CHECK(t.values("examples", name) == std::vector<double>(20, 8.0));
    CHECK(t.values("desirable", name) == std::vector<double>(20, 5.0));
    const auto& steps = want["kto"][name]["steps"];
    for (const auto& [key, of_trl, bound] : {std::tuple("lm_loss", "loss", 1e-5),
                                             {"kl", "kl", 1e-4},
                                             {"grad_norm", "grad_norm", 1e-5},
                                             {"rewards/chosen", "rewards/chosen", 1e-4},
                                             {"rewards/rejected", "rewards/rejected", 1e-4},
                                             {"logps/chosen", "logps/chosen", 1e-5},
                                             {"logps/rejected", "logps/rejected", 1e-5}}) {
      if (std::string(key) == "kl" && name == "apo_zero_unpaired") {
        CHECK_THAT(read_file(t.folder() + "/" + name + "/metrics.jsonl"), !Contains("\"kl\""));
        continue;
      }
      check_trl_steps(t, name, steps, key, of_trl, bound);
    }
  }
}

TEST_CASE("kto: the loss does not depend on micro-batch, accumulation, packing or layout") {
  TempRun t;
  write_examples(t);
  const std::string kto = kKto + "precision=fp64 train.train_steps=4 preference.undesirable_weight=1.3 ";
  const Outcome one =
      t.sh(kto + "output_dir=one parallel.data=1 parallel.zero_stage=0 train.micro_batch_size=8");
  INFO(one.text);
  REQUIRE(one.code == 0);
  CHECK(t.values("kl", "one")[0] < 1e-12);
  CHECK(t.values("kl", "one")[3] > 0);
  int run = 0;
  for (const char* layout : kLayouts) {
    const std::string name = "layout" + std::to_string(run++);
    check_same(t, kto + "output_dir=" + name + " " + layout, name, "one");
  }
  // All examples in each step, packed into longer and shorter samples.
  REQUIRE(t.shell("head -n 8 labelled.jsonl > eight.jsonl").code == 0);
  for (const auto& [length, samples] : {std::pair("64", 8), std::pair("1024", 1)}) {
    const std::string name = std::string("packed") + length;
    const Outcome o =
        t.sh(kto +
             "'data.train=[{path: eight.jsonl}]' model.max_position_embeddings=1024 parallel.data=1 "
             "parallel.zero_stage=0 train.micro_batch_size=1 data.seq_length=" +
             length + " train.global_batch_size=" + std::to_string(samples) + " output_dir=" + name);
    INFO(o.text);
    REQUIRE(o.code == 0);
    CHECK(t.values("examples", name) == std::vector<double>(4, 8.0));
  }
  for (const char* key : {"lm_loss", "kl"})
    for (size_t i = 0; i < 4; ++i)
      CHECK(std::abs(t.values(key, "packed64")[i] - t.values(key, "packed1024")[i]) <= 1e-11);
}

TEST_CASE(
    "kto: adapters begin at half of the weights, and have the losses of one process under every layout") {
  TempRun t;
  write_examples(t);
  const std::string kto = kKto + "precision=fp64 train.train_steps=4 optimizer.lr=0.02 lora.r=4 ";
  const Outcome one = t.sh(kto + "output_dir=one parallel.data=1 parallel.zero_stage=0");
  INFO(one.text);
  REQUIRE(one.code == 0);
  CHECK(std::abs(t.values("lm_loss", "one")[0] - 0.5) < 1e-12);
  CHECK(t.values("rewards/chosen", "one")[3] > 0.01);
  int run = 0;
  for (const char* layout : kLayouts) {
    const std::string name = "layout" + std::to_string(run++);
    check_same(t, kto + "output_dir=" + name + " " + layout, name, "one");
  }
  REQUIRE(t.sh("export one merged --merge").code == 0);
  REQUIRE(t.sh("export one adapter --adapter").code == 0);
}

TEST_CASE("kto and dpo: dropout acts on the policy, whose losses are the same under every layout") {
  TempRun t;
  write_examples(t);
  const std::string kto =
      kKto + "precision=fp64 train.train_steps=3 optimizer.lr=0.02 lora.r=4 lora.dropout=0.2 ";
  const Outcome one = t.sh(kto + "output_dir=one parallel.data=1 parallel.zero_stage=0");
  INFO(one.text);
  REQUIRE(one.code == 0);
  CHECK(t.values("kl", "one")[0] < 1e-12);  // the passes for the divergence have no dropout
  CHECK(std::abs(t.values("rewards/chosen", "one")[1]) > 1e-9);
  check_same(t, kto + "output_dir=two parallel.data=2 train.micro_batch_size=1", "two", "one");
  check_same(t, kto + "output_dir=three parallel.data=1 parallel.zero_stage=0 parallel.tensor=2", "three",
             "one");
  const Outcome without =
      t.sh(kto + "lora.dropout=0 output_dir=without parallel.data=1 parallel.zero_stage=0");
  REQUIRE(without.code == 0);
  CHECK(t.values("lm_loss", "without")[2] != t.values("lm_loss", "one")[2]);
}

TEST_CASE("kto: a loss without a divergence has no passes for it, in the plan too") {
  TempRun t;
  write_examples(t);
  const auto seconds = [&](const char* loss) {
    const Outcome o = t.sh("plan" + kKto.substr(3) +
                           "parallel.data=1 parallel.zero_stage=0 --json preference.loss=" + loss);
    INFO(o.text);
    REQUIRE(o.code == 0);
    return nlohmann::json::parse(o.text)["step_seconds"].get<double>();
  };
  // Half of a step with a divergence is its forward passes, three units of six with forward and backward.
  CHECK(seconds("apo_zero_unpaired") < 0.85 * seconds("kto"));
}

TEST_CASE("kto: a resumed run has the losses of one that was not stopped") {
  TempRun t;
  write_examples(t);
  const std::string kto = kKto + "checkpoint.save_interval=2 ";
  REQUIRE(t.sh(kto + "output_dir=whole").code == 0);
  REQUIRE(t.sh(kto + "output_dir=parts --steps 2").code == 0);
  const Outcome on = t.sh(kto + "output_dir=parts");
  INFO(on.text);
  REQUIRE(on.code == 0);
  CHECK(t.metric("lm_loss", "parts") == t.metric("lm_loss", "whole"));
  CHECK(t.metric("kl", "parts") == t.metric("kl", "whole"));
}

TEST_CASE("kto: rows that cannot be trained on stop the run with file, line and rule") {
  TempRun t;
  write_examples(t);
  const std::vector<std::pair<std::string, std::string>> rows = {
      {R"({"prompt": "a", "completion": "b"})", "expected the key label"},
      {R"({"prompt": "a", "completion": "b", "label": 1})", "expected true or false"},
      {R"({"prompt": "a", "completion": "", "label": true})", "expected text"},
      {R"({"prompt": "", "completion": "b", "label": true})", "no token before the completion"},
      {R"({"prompt": ")" + std::string(70, 'b') + R"(", "completion": "c", "label": true})",
       "samples have 128"}};
  for (const auto& [row, rule] : rows) {
    REQUIRE(t.shell("head -n 20 labelled.jsonl > bad.jsonl").code == 0);
    std::ofstream(t.folder() + "/bad.jsonl", std::ios::app) << row << "\n";
    const Outcome o = t.sh(kKto + "'data.train=[{path: bad.jsonl}]' output_dir=bad");
    INFO(row << "\n" << o.text);
    CHECK(o.code == 65);
    CHECK_THAT(o.text, Contains("bad.jsonl:21") && Contains(rule));
  }
  REQUIRE(t.shell("head -n 1 labelled.jsonl > single.jsonl").code == 0);
  const Outcome single = t.sh(kKto + "'data.train=[{path: single.jsonl}]' output_dir=bad");
  CHECK(single.code == 65);
  CHECK_THAT(single.text, Contains("1 labelled example, expected at least 2"));
}

TEST_CASE("kto: a build ahead of time gives the losses of the run's own, and is of no other task") {
  TempRun t;
  write_examples(t);
  const Outcome built =
      t.sh("data build --chat --unpaired --pack 128 --input labelled.jsonl --output built --tokenizer byte");
  INFO(built.text);
  REQUIRE(built.code == 0);
  CHECK_THAT(built.text, Contains("90 labelled examples"));
  REQUIRE(t.sh(kKto + "output_dir=own").code == 0);
  REQUIRE(t.sh(kKto + "'data.train=[built]' output_dir=ahead").code == 0);
  CHECK(t.metric("lm_loss", "ahead") == t.metric("lm_loss", "own"));
  const Outcome shown = t.sh("data inspect built --tokenizer byte");
  CHECK_THAT(shown.text, Contains("What follows"));
  CHECK_THAT(shown.text, !Contains("⟦W"));  // a label does not count in the loss
  const Outcome dpo = t.sh(kKto + "'data.train=[built]' task=dpo output_dir=w");
  CHECK(dpo.code == 64);
  CHECK_THAT(dpo.text, Contains("has labelled examples, expected preference pairs"));
  const Outcome plain = t.sh(kKto + "'data.train=[text-train]' output_dir=w");
  CHECK(plain.code == 64);
  CHECK_THAT(plain.text, Contains("text-train has no labelled examples"));
  const Outcome both = t.sh(
      "data build --chat --unpaired --preference --pack 64 --input labelled.jsonl --output x "
      "--tokenizer byte");
  CHECK(both.code == 64);
  CHECK_THAT(both.text, Contains("expected one of them"));
  // Short samples: completions of other examples are cut, and the build says so.
  const Outcome cut =
      t.sh("data build --chat --unpaired --pack 52 --input labelled.jsonl --output cut --tokenizer byte");
  INFO(cut.text);
  CHECK(cut.code == 0);
  CHECK_THAT(cut.text, Contains("are cut to fit into samples"));
}
