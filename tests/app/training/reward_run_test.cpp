// Reward models: `task: reward`, through the real program.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/app/outcomes.h"
#include "tests/app/run_program.h"
#include "tests/app/training/preference_pairs.h"
#include "tests/app/trl_recipe.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

const std::string kReward =
    "run tiny.yaml task=reward 'data.train=[{path: pairs.jsonl}]' data.eval=[] train.eval_interval=0 "
    "data.cache=cache data.seq_length=128 model.max_position_embeddings=128 checkpoint.save_interval=0 "
    "optimizer.lr=0.003 ";

/// The recipe of the comparisons, without the strength that other tasks have.
const std::string kTrl = "run reward.yaml '~preference.beta' ";

/// The values of a metric in two folders must be equal to `bound`.
void check_near(const TempRun& t, const char* key, const std::string& a, const std::string& b, double bound) {
  INFO(key << " of " << a << " and " << b);
  const std::vector<double> x = t.values(key, a), y = t.values(key, b);
  REQUIRE((x.size() == y.size() && !x.empty()));
  for (size_t i = 0; i < x.size(); ++i) CHECK(std::abs(x[i] - y[i]) <= bound * std::max(1.0, std::abs(y[i])));
}

const char* const kLayouts[] = {
    "parallel.data=1 parallel.zero_stage=0 train.micro_batch_size=1",
    "parallel.data=2 train.micro_batch_size=1",
    "parallel.data=2 parallel.zero_stage=3 train.micro_batch_size=4",
    "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2",
    "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2 parallel.sequence_parallel=true",
    "parallel.data=1 parallel.zero_stage=0 parallel.pipeline=2",
    "parallel.data=1 parallel.zero_stage=0 parallel.context=2"};

}  // namespace

TEST_CASE("reward: losses and rewards are those of TRL, with an adapter of PEFT too") {
  TempRun t;
  const std::string golden = trl_folder() + "/reward";
  const auto want = nlohmann::json::parse(read_file(golden + "/losses.json"));
  REQUIRE(t.shell("mkdir model && cp " + trl_folder() + "/config.json " + golden +
                  "/*.safetensors* model && cp " + trl_folder() + "/model.safetensors model/base.safetensors")
              .code == 0);
  write_trl_recipe(t, "reward", "pairs.jsonl");
  const std::map<std::string, std::string> settings = {
      {"plain", ""},
      {"centred", "preference.center_rewards_coefficient=0.1"},
      {"lora", "lora.adapter=" + golden + "/adapter lora.r=4 lora.alpha=8"}};
  for (const auto& [name, given] : settings) {
    INFO(name);
    succeeds(t, kTrl + "model.from=model output_dir=" + name + " " + given);
    CHECK(t.values("pairs", name) == std::vector<double>(20, 8.0));
    const auto& steps = want["runs"][name]["steps"];
    // With centring TRL's norms in fp32 are up to 1.4e-4 from those of an fp64 run, and ltrain's 4e-5.
    for (const auto& [key, of_trl, bound] : {std::tuple("lm_loss", "loss", 1e-5),
                                             {"grad_norm", "grad_norm", name == "centred" ? 1e-4 : 1e-5},
                                             {"rewards/chosen", "chosen", 1e-5},
                                             {"rewards/rejected", "rejected", 1e-5},
                                             {"rewards/margin", "margin", 1e-5},
                                             {"rewards/accuracy", "accuracy", 1e-6}}) {
      check_trl_steps(t, name, steps, key, of_trl, bound);
    }
  }
}

TEST_CASE("reward: the loss does not depend on micro-batch, accumulation, packing or layout") {
  TempRun t;
  write_pairs(t);
  const std::string reward =
      kReward + "precision=fp64 train.train_steps=4 preference.center_rewards_coefficient=0.05 ";
  succeeds(t, reward + "output_dir=one parallel.data=1 parallel.zero_stage=0 train.micro_batch_size=8");
  const std::vector<double> losses = t.values("lm_loss", "one");
  REQUIRE(losses.size() == 4);
  CHECK(losses[3] < losses[0]);
  int run = 0;
  for (const char* layout : kLayouts) {
    const std::string name = "layout" + std::to_string(run++);
    succeeds(t, reward + "output_dir=" + name + " " + layout);
    for (const char* key : {"lm_loss", "grad_norm", "rewards/chosen", "rewards/rejected"})
      check_near(t, key, name, "one", 1e-12);
    CHECK(t.metric("rewards/accuracy", name) == t.metric("rewards/accuracy", "one"));
  }
  // All pairs in each step, packed into longer and shorter samples.
  REQUIRE(t.shell("head -n 8 pairs.jsonl > eight.jsonl").code == 0);
  for (const auto& [length, samples] : {std::pair("80", 8), std::pair("512", 1)})
    succeeds(t, reward +
                    "'data.train=[{path: eight.jsonl}]' model.max_position_embeddings=512 parallel.data=1 "
                    "parallel.zero_stage=0 train.micro_batch_size=1 data.seq_length=" +
                    length + " train.global_batch_size=" + std::to_string(samples) + " output_dir=packed" +
                    length);
  CHECK(t.values("pairs", "packed512") == std::vector<double>(4, 8.0));
  check_near(t, "lm_loss", "packed80", "packed512", 1e-12);
}

TEST_CASE("reward: adapters train beside the score, under every layout") {
  TempRun t;
  write_pairs(t);
  const std::string reward = kReward + "precision=fp64 train.train_steps=3 optimizer.lr=0.02 lora.r=4 ";
  succeeds(t, reward + "output_dir=one parallel.data=1 parallel.zero_stage=0");
  const std::vector<double> losses = t.values("lm_loss", "one");
  CHECK(std::abs(losses[2] - losses[0]) > 1e-4);
  int run = 0;
  for (const char* layout : kLayouts) {
    const std::string name = "layout" + std::to_string(run++);
    succeeds(t, reward + "output_dir=" + name + " " + layout);
    check_near(t, "lm_loss", name, "one", 1e-12);
  }
  succeeds(t, "export one adapter --adapter");
  const auto config = nlohmann::json::parse(read_file(t.folder() + "/adapter/adapter_config.json"));
  CHECK(config["task_type"] == "SEQ_CLS");
  CHECK(config["modules_to_save"] == nlohmann::json{"score"});
  CHECK_THAT(read_file(t.folder() + "/adapter/adapter_model.safetensors"),
             Contains("base_model.model.score.weight"));
}

TEST_CASE("reward: from a causal model to an exported folder that a run continues with") {
  TempRun t;
  REQUIRE(t.shell("cp -r " + trl_folder() + " model").code == 0);
  auto base = nlohmann::json::parse(read_file(t.folder() + "/model/config.json"));
  REQUIRE(base["eos_token_id"] == 256);
  base["pad_token_id"] = 256;
  std::ofstream(t.folder() + "/model/config.json") << base;
  write_trl_recipe(t, "reward", "pairs.jsonl");
  const Outcome first = succeeds(t, kTrl + "model.from=model output_dir=whole");
  CHECK_THAT(first.text,
             Contains("score.weight begins at random") && Contains("lm_head.weight is passed over"));
  // The exported folder's first loss is that of the step behind the export.
  const std::string save = " checkpoint.save_interval=5 ";
  succeeds(t, kTrl + "model.from=model output_dir=parts --steps 5" + save);
  succeeds(t, "export parts scored");
  const auto config = nlohmann::json::parse(read_file(t.folder() + "/scored/config.json"));
  CHECK(config["architectures"] == nlohmann::json{"LlamaForSequenceClassification"});
  CHECK(config["id2label"].size() == 1);
  // The model's padding is its end of text, at which scores are read.
  CHECK(
      (config["eos_token_id"] == 256 && config.contains("pad_token_id") && config["pad_token_id"].is_null()));
  succeeds(t, kTrl + "model.from=scored output_dir=again train.train_steps=1");
  CHECK(t.values("lm_loss", "again")[0] == t.values("lm_loss", "whole")[5]);
  succeeds(t, kTrl + "model.from=model output_dir=parts" + save);
  CHECK(t.metric("lm_loss", "parts") == t.metric("lm_loss", "whole"));
  // A score is not a distribution over tokens.
  const Outcome generated = t.sh("generate parts --prompt a");
  CHECK(generated.code == 64);
  CHECK_THAT(generated.text, Contains("is a reward model"));
  const Outcome causal = t.sh("run reward.yaml task=dpo model.from=scored output_dir=causal");
  CHECK(causal.code == 64);
  CHECK_THAT(causal.text, Contains("lm_head.weight") && Contains("score.weight"));
}

TEST_CASE("reward: margins that are no numbers, and adapters beside a frozen score, are refused") {
  TempRun t;
  std::ofstream(t.folder() + "/pairs.jsonl")
      << R"({"prompt": "a", "chosen": "b", "rejected": "c", "margin": "0.5"})"
      << "\n";
  const Outcome margin = t.sh(kReward + "output_dir=w");
  CHECK(margin.code == 65);
  CHECK_THAT(margin.text,
             Contains("pairs.jsonl:1") && Contains("margin = \"0.5\": expected a finite number"));
  std::ofstream(t.folder() + "/pairs.jsonl")
      << R"({"prompt": "a", "chosen": "b", "rejected": "c", "margin": 0.5})"
      << "\n";
  REQUIRE(
      t.sh("data build --chat --preference --pack 128 --input pairs.jsonl --output built --tokenizer byte")
          .code == 0);
  const std::string ahead = kReward + "'data.train=[built]' train.train_steps=1 ";
  succeeds(t, ahead + "output_dir=ahead");
  for (const auto& [change, rule] :
       {std::pair("printf '\\0\\0\\0\\0\\0\\0\\370\\177' > built.margins",
                  "margin nan of pair 0, expected a finite number"),
        std::pair("head -c 7 /dev/zero > built.margins", "7 bytes, expected 8 for each"),
        std::pair("head -c 0 /dev/zero > built.margins", "0 margins, expected those of 1 pairs")}) {
    REQUIRE(t.shell(change).code == 0);
    const Outcome damaged = t.sh(ahead + "output_dir=damaged");
    INFO(damaged.text);
    CHECK(damaged.code == 65);
    CHECK_THAT(damaged.text, Contains("built.margins") && Contains(rule));
  }
  const Outcome frozen = t.sh(kReward + "output_dir=w lora.r=4 'lora.modules_to_save=[embed_tokens]'");
  CHECK(frozen.code == 64);
  CHECK_THAT(frozen.text, Contains("has no score") && Contains("nearest valid value: [score]"));
}
