// Preference training: `task: dpo` on pairs, through the real program.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/app/run_program.h"
#include "tests/app/training/losses.h"
#include "tests/app/training/preference_pairs.h"
#include "tests/app/trl_recipe.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

const std::string kDpo =
    "run tiny.yaml task=dpo 'data.train=[{path: pairs.jsonl}]' data.eval=[] train.eval_interval=0 "
    "data.cache=cache data.seq_length=128 model.max_position_embeddings=128 checkpoint.save_interval=0 "
    "optimizer.lr=0.003 preference.beta=0.5 ";

/// Runs a command that writes the folder `name`, whose losses must be the expected ones.
void check_preference_losses(const TempRun& t, const std::string& command, const std::string& name,
                             const std::vector<double>& expected) {
  const Outcome o = t.sh(command);
  INFO(command << "\n" << o.text);
  REQUIRE(o.code == 0);
  check_same_losses(t.values("lm_loss", name), expected);
}

/// Compares a reference that each step makes, under every layout, with one computed before: `dpo` with each
/// of `kinds`, and with `reference`.
void check_reference_in_step(const TempRun& t, const std::string& dpo, const std::vector<std::string>& kinds,
                             const std::string& reference) {
  int run = 0;
  for (const std::string& kind : kinds) {
    const std::string before = "before" + std::to_string(run);
    REQUIRE(t.sh(dpo + kind + "parallel.data=1 parallel.zero_stage=0 output_dir=" + before).code == 0);
    const std::vector<double> expected = t.values("lm_loss", before);
    REQUIRE(expected.size() == 4);
    CHECK(std::abs(expected[3] - expected[0]) > 0.01);
    for (const char* layout :
         {"parallel.data=1 parallel.zero_stage=0 train.micro_batch_size=8",
          "parallel.data=2 parallel.zero_stage=3 train.micro_batch_size=2",
          "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2 parallel.sequence_parallel=true",
          "parallel.data=1 parallel.zero_stage=0 parallel.pipeline=2",
          "parallel.data=1 parallel.zero_stage=0 parallel.context=2"}) {
      const std::string name = "in_step" + std::to_string(run++);
      check_preference_losses(t, dpo + kind + reference + "output_dir=" + name + " " + layout, name,
                              expected);
      CHECK(!std::filesystem::exists(t.folder() + "/" + name + "/reference-sums.bin"));
    }
  }
}

}  // namespace

TEST_CASE("dpo: the losses are those of TRL") {
  TempRun t;
  const std::string golden = trl_folder();
  const auto want = nlohmann::json::parse(read_file(golden + "/losses.json"));
  write_trl_recipe(t, "dpo", "pairs.jsonl");
  const std::map<std::string, std::string> settings = {
      {"sigmoid", ""},
      {"ipo", "preference.loss=ipo"},
      {"hinge", "preference.loss=hinge"},
      {"robust", "preference.loss=robust preference.label_smoothing=0.1"},
      {"sigmoid_norm", "preference.loss=sigmoid_norm"},
      {"apo_zero", "preference.loss=apo_zero"},
      {"sigmoid+sft", "preference.sft_weight=0.5"},
      {"simpo", "preference.loss=simpo preference.gamma=0.4"},
      {"orpo", "preference.loss=orpo preference.sft_weight=1"},
      {"reference",
       "preference.reference=resident preference.reference_model=" + golden + "/../distillation"}};
  for (const auto& [name, given] : settings) {
    INFO(name);
    const Outcome o = t.sh("run dpo.yaml output_dir=" + name + " " + given);
    INFO(o.text);
    REQUIRE(o.code == 0);
    const auto& steps = want["runs"][name]["steps"];
    const auto near = [&](const char* key, const char* of_trl, double bound) {
      check_trl_steps(t, name, steps, key, of_trl, bound);
    };
    near("lm_loss", "loss", 1e-5);
    near("grad_norm", "grad_norm", 1e-5);
    near("rewards/chosen", "rewards/chosen", 1e-4);
    near("rewards/rejected", "rewards/rejected", 1e-4);
    near("rewards/accuracy", "rewards/accuracies", 1e-6);
    if (!steps[0].contains("logps/chosen"))
      continue;  // means over tokens, in TRL's losses without a reference
    near("logps/chosen", "logps/chosen", 1e-5);
    near("logps/rejected", "logps/rejected", 1e-5);
  }
}

TEST_CASE("dpo: the loss does not depend on micro-batch, accumulation, packing or layout") {
  TempRun t;
  write_pairs(t);
  const std::string dpo = kDpo + "precision=fp64 train.train_steps=4 preference.sft_weight=0.3 ";
  const Outcome one =
      t.sh(dpo + "output_dir=one parallel.data=1 parallel.zero_stage=0 train.micro_batch_size=8");
  INFO(one.text);
  REQUIRE(one.code == 0);
  const std::vector<double> expected = t.values("lm_loss", "one");
  REQUIRE(expected.size() == 4);
  CHECK(std::abs(t.values("pair_loss", "one")[0] - std::log(2.0)) < 1e-12);
  CHECK(expected[3] < expected[0]);
  int run = 0;
  for (const char* layout : {"parallel.data=1 parallel.zero_stage=0 train.micro_batch_size=1",
                             "parallel.data=2 train.micro_batch_size=1",
                             "parallel.data=2 parallel.zero_stage=3 train.micro_batch_size=4",
                             "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2",
                             "parallel.data=1 parallel.zero_stage=0 parallel.pipeline=2",
                             "parallel.data=1 parallel.zero_stage=0 parallel.context=2"}) {
    const std::string name = "layout" + std::to_string(run++);
    check_preference_losses(t, dpo + "output_dir=" + name + " " + layout, name, expected);
    CHECK(t.metric("rewards/accuracy", name) == t.metric("rewards/accuracy", "one"));
  }
  // All pairs in each step, packed into longer and shorter samples.
  REQUIRE(t.shell("head -n 8 pairs.jsonl > eight.jsonl").code == 0);
  std::vector<std::vector<double>> packed;
  for (const auto& [length, samples] : {std::pair("80", 8), std::pair("512", 1)}) {
    const std::string name = std::string("packed") + length;
    const Outcome o =
        t.sh(dpo +
             "'data.train=[{path: eight.jsonl}]' model.max_position_embeddings=512 parallel.data=1 "
             "parallel.zero_stage=0 train.micro_batch_size=1 data.seq_length=" +
             length + " train.global_batch_size=" + std::to_string(samples) + " output_dir=" + name);
    INFO(o.text);
    REQUIRE(o.code == 0);
    CHECK(t.values("pairs", name) == std::vector<double>(4, 8.0));
    packed.push_back(t.values("lm_loss", name));
  }
  for (size_t i = 0; i < 4; ++i) CHECK(std::abs(packed[0][i] - packed[1][i]) <= 1e-12 * packed[0][i]);
}

TEST_CASE("dpo: adapters begin at equal models, and have the losses of one process under every layout") {
  TempRun t;
  write_pairs(t);
  const std::string dpo = kDpo + "precision=fp64 train.train_steps=4 optimizer.lr=0.02 lora.r=4 ";
  const Outcome one = t.sh(dpo + "output_dir=one parallel.data=1 parallel.zero_stage=0");
  INFO(one.text);
  REQUIRE(one.code == 0);
  const std::vector<double> expected = t.values("lm_loss", "one");
  REQUIRE(expected.size() == 4);
  CHECK(std::abs(expected[0] - std::log(2.0)) < 1e-12);
  CHECK(expected[3] < expected[0] - 0.01);
  int run = 0;
  for (const char* layout : {"parallel.data=2 parallel.zero_stage=3 train.micro_batch_size=2",
                             "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2",
                             "parallel.data=1 parallel.zero_stage=0 parallel.pipeline=2",
                             "parallel.data=1 parallel.zero_stage=0 parallel.context=2"}) {
    const std::string name = "layout" + std::to_string(run++);
    check_preference_losses(t, dpo + "output_dir=" + name + " " + layout, name, expected);
  }
  REQUIRE(t.sh("export one merged --merge").code == 0);
  // The reference has no dropout, and the policy has.
  const Outcome drop = t.sh(dpo + "output_dir=drop lora.dropout=0.1 parallel.data=1 parallel.zero_stage=0");
  INFO(drop.text);
  REQUIRE(drop.code == 0);
  CHECK(t.values("lm_loss", "drop")[3] != expected[3]);
  check_preference_losses(t,
                          dpo + "output_dir=drop2 lora.dropout=0.1 parallel.data=2 train.micro_batch_size=2",
                          "drop2", t.values("lm_loss", "drop"));
}

TEST_CASE("dpo: a reference without adapters, in each step, has the losses of one computed before") {
  TempRun t;
  write_pairs(t);
  const std::string dpo =
      kDpo + "precision=fp64 train.train_steps=4 optimizer.lr=0.02 lora.r=4 preference.sft_weight=0.3 ";
  check_reference_in_step(t, dpo, {"", "preference.loss=ipo lora.dora=true "},
                          "preference.reference=adapters_off ");
  const std::string off = dpo + "preference.reference=adapters_off checkpoint.save_interval=2 ";
  REQUIRE(t.sh(off + "output_dir=whole").code == 0);
  REQUIRE(t.sh(off + "output_dir=parts --steps 2").code == 0);
  REQUIRE(t.sh(off + "output_dir=parts").code == 0);
  CHECK(t.metric("lm_loss", "parts") == t.metric("lm_loss", "whole"));
}

TEST_CASE("dpo: a reference that stays in memory has the losses of one computed before, and planned bytes") {
  TempRun t;
  write_pairs(t);
  const std::string dpo = kDpo + "precision=fp64 train.train_steps=4 preference.sft_weight=0.3 ";
  const std::string resident = "preference.reference=resident ";
  check_reference_in_step(
      t, dpo, {"model.tie_word_embeddings=true ", "preference.loss=ipo lora.r=4 optimizer.lr=0.02 "},
      resident);
  // The parameters of a plan have the reference's too, in full, or in halves with ZeRO-3.
  for (const char* layout :
       {"parallel.data=1 parallel.zero_stage=0 ", "parallel.data=2 parallel.zero_stage=3 "}) {
    std::vector<int64_t> bytes, held;
    for (const std::string& reference : {std::string(), resident}) {
      const Outcome plan = t.sh("plan" + dpo.substr(3) + layout + reference + "--json");
      INFO(plan.text);
      const auto rank = nlohmann::json::parse(plan.text)["ranks"][0];
      bytes.push_back(rank["memory_bytes"]["arena"]["parameters"].get<int64_t>());
      held.push_back(reference.empty() ? 0 : rank["reference"]["bytes"].get<int64_t>());
      if (!reference.empty()) CHECK(rank["reference"]["seconds"] > 0);
    }
    CHECK(held[1] > 0);
    CHECK(bytes[1] - bytes[0] == held[1]);
  }
}

TEST_CASE("dpo: a model with experts has TRL's losses, and those of one process under every layout") {
  TempRun t;
  const auto want = nlohmann::json::parse(read_file(trl_folder() + "/losses.json"));
  write_trl_recipe(t, "dpo", "pairs.jsonl");
  const Outcome trl = t.sh("run dpo.yaml output_dir=trl model.from=" + trl_folder() + "/experts");
  INFO(trl.text);
  REQUIRE(trl.code == 0);
  for (const auto& [key, of_trl, bound] : {std::tuple("lm_loss", "loss", 1e-5),
                                           {"grad_norm", "grad_norm", 1e-5},
                                           {"rewards/rejected", "rewards/rejected", 1e-4},
                                           {"logps/chosen", "logps/chosen", 1e-5}})
    check_trl_steps(t, "trl", want["experts"]["sigmoid"]["steps"], key, of_trl, bound);
  write_pairs(t);
  const std::string dpo =
      kDpo +
      "precision=fp64 train.train_steps=3 model.architecture=qwen3_moe model.moe.num_experts=4 "
      "model.moe.top_k=2 model.moe.intermediate_size=24 model.moe.balance.kind=none ";
  const Outcome one = t.sh(dpo + "output_dir=one parallel.data=1 parallel.zero_stage=0");
  INFO(one.text);
  REQUIRE(one.code == 0);
  const std::vector<double> expected = t.values("lm_loss", "one");
  REQUIRE(expected.size() == 3);
  CHECK(std::abs(expected[0] - std::log(2.0)) < 1e-12);
  int run = 0;
  for (const char* layout :
       {"parallel.data=2 parallel.expert=2 parallel.zero_stage=1 train.micro_batch_size=1",
        "parallel.data=2 parallel.expert=2 parallel.zero_stage=1 preference.reference=resident",
        "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2 preference.reference=resident",
        "parallel.data=1 parallel.zero_stage=0 parallel.pipeline=2 preference.reference=resident"}) {
    const std::string name = "layout" + std::to_string(run++);
    check_preference_losses(t, dpo + "output_dir=" + name + " " + layout, name, expected);
  }
  const std::string lora = dpo + "lora.r=4 'lora.target_modules=[\"*.experts.*\"]' optimizer.lr=0.02 ";
  REQUIRE(t.sh(lora + "output_dir=lora parallel.data=1 parallel.zero_stage=0").code == 0);
  const std::vector<double> adapted = t.values("lm_loss", "lora");
  REQUIRE(adapted.size() == 3);
  CHECK(adapted[2] < adapted[0] - 1e-3);
  check_preference_losses(
      t, lora + "output_dir=off parallel.data=2 parallel.expert=2 preference.reference=adapters_off", "off",
      adapted);
}

TEST_CASE("dpo: another model is the reference under every layout, for held-out texts and resumed runs") {
  TempRun t;
  write_pairs(t);
  const std::string alone = "parallel.data=1 parallel.zero_stage=0 ";
  const std::string shape = "data.seq_length=128 model.max_position_embeddings=128 ";
  REQUIRE(t.sh("run tiny.yaml output_dir=other seed=9 model.hidden_size=48 train.train_steps=2 data.eval=[] "
               "train.eval_interval=0 model.tie_word_embeddings=true " +
               shape)
              .code == 0);
  const std::string dpo = kDpo +
                          "preference.reference=resident preference.reference_model=other precision=fp64 "
                          "train.train_steps=4 ";
  REQUIRE(t.sh(dpo + alone + "output_dir=one").code == 0);
  const std::vector<double> expected = t.values("lm_loss", "one");
  REQUIRE(expected.size() == 4);
  CHECK(std::abs(expected[0] - std::log(2.0)) > 1e-3);
  int run = 0;
  for (const char* layout :
       {"parallel.data=2 parallel.zero_stage=3 train.micro_batch_size=2",
        "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2 parallel.sequence_parallel=true",
        "parallel.data=1 parallel.zero_stage=0 parallel.pipeline=2",
        "parallel.data=1 parallel.zero_stage=0 parallel.context=2"}) {
    const std::string name = "layout" + std::to_string(run++);
    check_preference_losses(t, dpo + "output_dir=" + name + " " + layout, name, expected);
  }
  // A policy that stays has equal losses on texts that train and on the same ones held out.
  REQUIRE(t.shell("head -n 8 pairs.jsonl > eight.jsonl").code == 0);
  const Outcome held =
      t.sh(dpo + alone +
           "'data.train=[{path: eight.jsonl}]' 'data.eval=[{path: eight.jsonl}]' data.seq_length=80 "
           "train.eval_interval=1 train.eval_steps=1 train.global_batch_size=8 optimizer.lr=1e-13 "
           "output_dir=held");
  INFO(held.text);
  REQUIRE(held.code == 0);
  CHECK(std::abs(t.values("lm_loss", "held")[0] - t.values("eval_loss", "held")[0]) < 1e-9);
  CHECK(!std::filesystem::exists(t.folder() + "/held/reference-sums.bin"));
  const std::string saved = dpo + alone + "checkpoint.save_interval=2 ";
  REQUIRE(t.sh(saved + "output_dir=parts --steps 2").code == 0);
  REQUIRE(t.shell("cp -r parts lost").code == 0);
  REQUIRE(t.sh(saved + "output_dir=parts").code == 0);
  CHECK(t.metric("lm_loss", "parts") == t.metric("lm_loss", "one"));
  CHECK(t.sh("generate parts --prompt What --tokens 3").code == 0);
  REQUIRE(t.shell("mv other gone").code == 0);
  const Outcome lost = t.sh(saved + "output_dir=lost");
  CHECK(lost.code != 0);
  CHECK_THAT(lost.text, Contains("preference.reference_model = other: there is no such folder"));
}

TEST_CASE("dpo: a reference that does not fit beside the policy is refused with its key") {
  TempRun t;
  write_pairs(t);
  for (const char* settings :
       {"small model.hidden_size=24 model.num_attention_heads=3 model.num_key_value_heads=1",
        "deep model.num_hidden_layers=3"})
    REQUIRE(t.sh("run tiny.yaml data.eval=[] train.eval_interval=0 train.train_steps=1 data.seq_length=128 "
                 "model.max_position_embeddings=128 output_dir=" +
                 std::string(settings))
                .code == 0);
  for (const auto& [settings, rule] :
       {std::pair("preference.reference_model=small parallel.tensor=2",
                  "preference.reference_model = small: its model breaks a rule: parallel.tensor = 2"),
        {"preference.reference_model=deep parallel.pipeline=2",
         "preference.reference_model = deep: has 3 layers, and model.num_hidden_layers is 2"},
        {"preference.reference_model=nowhere",
         "preference.reference_model = nowhere: there is no such folder"}}) {
    const Outcome o =
        t.sh(kDpo + "preference.reference=resident parallel.data=1 parallel.zero_stage=0 output_dir=w " +
             settings);
    INFO(settings << "\n" << o.text);
    CHECK(o.code != 0);
    CHECK_THAT(o.text, Contains(rule));
  }
}

TEST_CASE("dpo: a resumed run has the losses of one that was not stopped, and needs its reference sums") {
  TempRun t;
  write_pairs(t);
  const std::string dpo = kDpo + "checkpoint.save_interval=2 ";
  REQUIRE(t.sh(dpo + "output_dir=whole").code == 0);
  REQUIRE(t.sh(dpo + "output_dir=parts --steps 2").code == 0);
  const Outcome on = t.sh(dpo + "output_dir=parts");
  INFO(on.text);
  REQUIRE(on.code == 0);
  CHECK(t.metric("lm_loss", "parts") == t.metric("lm_loss", "whole"));
  CHECK(t.metric("rewards/margin", "parts") == t.metric("rewards/margin", "whole"));
  REQUIRE(t.sh(dpo + "output_dir=lost --steps 2").code == 0);
  REQUIRE(t.shell("printf x | dd of=lost/reference-sums.bin bs=1 seek=60 conv=notrunc").code == 0);
  const Outcome damaged = t.sh(dpo + "output_dir=lost");
  CHECK(damaged.code == 65);
  CHECK_THAT(damaged.text, Contains("reference-sums.bin: damaged"));
  REQUIRE(t.shell("rm lost/reference-sums.bin").code == 0);
  const Outcome missing = t.sh(dpo + "output_dir=lost");
  CHECK(missing.code == 65);
  CHECK_THAT(missing.text, Contains("reference-sums.bin: missing"));
}

TEST_CASE("dpo: pairs that cannot be trained on stop the run with file, line and rule") {
  TempRun t;
  write_pairs(t);
  const std::vector<std::pair<std::string, std::string>> rows = {
      {R"({"prompt": "a", "chosen": "same", "rejected": "same"})", "expected different ones"},
      {R"({"chosen": "same", "rejected": "same"})", "expected two different texts"},
      {R"({"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "user", "content": "b"}]})",
       "common prompt"},
      {R"({"prompt": "a", "chosen": "b"})", "expected the key rejected"},
      {R"({"prompt": "a", "chosen": 5, "rejected": "b"})", "expected a list of messages"},
      {R"({"prompt": "a", "chosen": ")" + std::string(200, 'b') + R"(", "rejected": "c"})",
       "samples have 128"}};
  for (const auto& [row, rule] : rows) {
    REQUIRE(t.shell("head -n 20 pairs.jsonl > bad.jsonl").code == 0);
    std::ofstream(t.folder() + "/bad.jsonl", std::ios::app) << row << "\n";
    const Outcome o = t.sh(kDpo + "'data.train=[{path: bad.jsonl}]' output_dir=bad");
    INFO(row << "\n" << o.text);
    CHECK(o.code == 65);
    CHECK_THAT(o.text, Contains("bad.jsonl:21") && Contains(rule));
  }
}

TEST_CASE("dpo: a build ahead of time gives the losses of the run's own, and is of no other task") {
  TempRun t;
  write_pairs(t);
  const Outcome built =
      t.sh("data build --chat --preference --pack 128 --input pairs.jsonl --output pairs --tokenizer byte");
  INFO(built.text);
  REQUIRE(built.code == 0);
  CHECK_THAT(built.text, Contains("90 preference pairs"));
  REQUIRE(t.sh(kDpo + "output_dir=own").code == 0);
  REQUIRE(t.sh(kDpo + "'data.train=[pairs]' output_dir=built").code == 0);
  CHECK(t.metric("lm_loss", "built") == t.metric("lm_loss", "own"));
  const Outcome sft = t.sh(kDpo + "'data.train=[pairs]' task=sft ~preference.beta output_dir=w");
  CHECK(sft.code == 64);
  CHECK_THAT(sft.text, Contains("has preference pairs, expected conversations"));
  const Outcome plain = t.sh(kDpo + "'data.train=[text-train]' output_dir=w");
  CHECK(plain.code == 64);
  CHECK_THAT(plain.text, Contains("text-train has no preference pairs"));
  const Outcome unpacked =
      t.sh("data build --chat --preference --input pairs.jsonl --output x --tokenizer byte");
  CHECK(unpacked.code == 64);
  CHECK_THAT(unpacked.text, Contains("--pack"));
}
