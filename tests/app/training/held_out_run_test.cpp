// Held-out preference pairs and labelled texts: evaluations of `task: dpo`, `kto` and `reward`, through the
// real program.
#include <array>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/app/outcomes.h"
#include "tests/app/run_program.h"
#include "tests/app/trl_recipe.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Writes pairs.jsonl and held.jsonl, which `task` reads.
void write_texts(const TempRun& t, const std::string& task) {
  const auto write = [&](const char* file, int first, int count) {
    std::ofstream out(t.folder() + "/" + file);
    for (int i = first; i < first + count; ++i) {
      const std::string good = " " + std::to_string(i + 1) + std::string(static_cast<size_t>(i % 4), '.'),
                        bad = " no, " + std::to_string(i * i);
      nlohmann::json row{{"prompt", "What follows " + std::to_string(i) + "?"}};
      if (task == "kto")
        row.update({{"completion", i % 3 == 1 ? bad : good}, {"label", i % 3 != 1}});
      else
        row.update({{"chosen", good}, {"rejected", bad}});
      if (task == "reward" && i % 3 > 0) row["margin"] = 0.1 * (i % 7) - 0.2;
      out << row.dump() << "\n";
    }
  };
  write("pairs.jsonl", 0, 60);
  write("held.jsonl", 100, 13);
}

std::string command_of(const std::string& task) {
  return "run tiny.yaml 'data.train=[{path: pairs.jsonl}]' 'data.eval=[{path: held.jsonl}]' "
         "train.eval_interval=2 train.eval_steps=9 data.cache=cache data.seq_length=128 "
         "model.max_position_embeddings=256 checkpoint.save_interval=0 optimizer.lr=0.003 precision=fp64 "
         "train.train_steps=4 task=" +
         task + " ";
}

std::vector<std::string> keys_of(const std::string& task) {
  std::vector<std::string> keys = {"eval_loss", "eval_rewards/chosen", "eval_rewards/rejected"};
  if (task == "kto") keys.emplace_back("eval_kl");
  if (task != "kto") keys.emplace_back("eval_rewards/accuracy");
  return keys;
}

/// The evaluations of two runs must be equal to 1e-11.
void check_same(const TempRun& t, const std::string& task, const std::string& a, const std::string& b) {
  for (const std::string& key : keys_of(task)) {
    INFO(key << " of " << a << " and " << b);
    const std::vector<double> x = t.values(key, a), y = t.values(key, b);
    REQUIRE((x.size() == y.size() && !x.empty()));
    for (size_t i = 0; i < x.size(); ++i) CHECK(std::abs(x[i] - y[i]) <= 1e-11 * (1 + std::abs(y[i])));
  }
}

}  // namespace

TEST_CASE("held-out pairs: losses, rewards and accuracies are those of TRL") {
  TempRun t;
  const std::string golden = trl_folder();
  const auto want = nlohmann::json::parse(read_file(golden + "/held-out.json"));
  REQUIRE(t.shell("mkdir model && cp " + golden + "/config.json " + golden +
                  "/reward/*.safetensors* model && cp " + golden +
                  "/model.safetensors model/base.safetensors")
              .code == 0);
  using Texts = std::array<std::string, 5>;
  const std::vector<Texts> cases = {
      Texts{"dpo", "dpo", "pairs", "held-out-pairs", ""},
      Texts{"dpo+sft", "dpo", "pairs", "held-out-pairs", "preference.sft_weight=0.5"},
      Texts{"kto", "kto", "labelled", "held-out-labelled", ""},
      Texts{"reward", "reward", "pairs", "held-out-pairs", "model.from=model '~preference.beta'"},
      Texts{"margins", "reward", "margins", "held-out-margins",
            "model.from=model '~preference.beta' preference.center_rewards_coefficient=0.1"}};
  for (const auto& [name, task, train, held, given] : cases) {
    INFO(name);
    write_trl_recipe(t, task, train + ".jsonl");
    succeeds(t, "run " + task + ".yaml output_dir=" + name +
                    " train.train_steps=6 train.eval_interval=1 train.eval_steps=8 'data.eval=[{path: " +
                    golden + "/" + held + ".jsonl}]' " + given);
    const auto& steps = want["runs"][name]["evaluations"];
    const auto losses = want["runs"][name]["losses"].get<std::vector<double>>(),
               got = t.values("lm_loss", name);
    REQUIRE(got.size() == losses.size());
    for (size_t i = 0; i < got.size(); ++i)
      CHECK(std::abs(got[i] - losses[i]) <= 1e-5 * std::max(1.0, losses[i]));
    const bool reward = task == "reward", kto = task == "kto";
    const std::string& run = name;
    const auto near = [&](const char* key, const char* of_trl) {
      check_trl_steps(t, run, steps, key, of_trl, 1e-5);
    };
    near("eval_loss", "eval_loss");
    near("eval_rewards/chosen", "eval_rewards/chosen");
    near("eval_rewards/rejected", "eval_rewards/rejected");
    near("eval_rewards/margin", reward ? "eval_margin" : "eval_rewards/margins");
    if (!kto) near("eval_rewards/accuracy", reward ? "eval_accuracy" : "eval_rewards/accuracies");
    if (kto) near("eval_kl", "eval_kl");
    if (!reward) near("eval_logps/chosen", "eval_logps/chosen");
    if (!reward) near("eval_logps/rejected", "eval_logps/rejected");
    CHECK(t.values(kto ? "eval_examples" : "eval_pairs", name) == std::vector<double>(6, 5.0));
    CHECK(t.values("eval_perplexity", name).empty());
  }
}

TEST_CASE("held-out pairs: the evaluation does not depend on micro-batch, packing or layout") {
  for (const std::string task : {"dpo", "kto", "reward"}) {
    INFO(task);
    TempRun t;
    write_texts(t, task);
    const std::string run = command_of(task);
    const Outcome one = succeeds(t, run + "output_dir=one parallel.data=1 parallel.zero_stage=0");
    CHECK_THAT(one.text, Contains("eval at step 4: loss ") && Contains(", margin "));
    CHECK((one.text.find(", accuracy ") == std::string::npos) == (task == "kto"));
    CHECK(t.values(task == "kto" ? "eval_examples" : "eval_pairs", "one") == std::vector<double>(2, 13.0));
    CHECK(t.values("eval_loss", "one")[0] != t.values("eval_loss", "one")[1]);
    int number = 0;
    for (const char* layout : {"parallel.data=1 parallel.zero_stage=0 train.micro_batch_size=1",
                               "parallel.data=2 parallel.zero_stage=3 train.micro_batch_size=2",
                               "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2",
                               "parallel.data=1 parallel.zero_stage=0 parallel.pipeline=2",
                               "parallel.data=1 parallel.zero_stage=0 parallel.context=2"}) {
      const std::string name = "layout" + std::to_string(number++);
      succeeds(t, run + "output_dir=" + name + " " + layout);
      check_same(t, task, name, "one");
    }
    // Longer samples for the same weights, which such updates leave as they are.
    for (const char* length : {"128", "256"})
      succeeds(t, run +
                      "optimizer.lr=1e-40 parallel.data=1 parallel.zero_stage=0 train.train_steps=2 "
                      "train.global_batch_size=8 data.seq_length=" +
                      std::string(length) + " output_dir=packed" + length);
    check_same(t, task, "packed128", "packed256");
  }
}

TEST_CASE("held-out pairs: a resumed run has the evaluations and the best checkpoint of one never stopped") {
  TempRun t;
  write_texts(t, "dpo");
  const std::string dpo = command_of("dpo") + "checkpoint.save_interval=2 checkpoint.keep_best=true ";
  succeeds(t, dpo + "output_dir=whole");
  succeeds(t, dpo + "output_dir=parts --steps 2");
  succeeds(t, dpo + "output_dir=parts");
  CHECK(t.metric("eval_loss", "parts") == t.metric("eval_loss", "whole"));
  CHECK(t.metric("eval_rewards/margin", "parts") == t.metric("eval_rewards/margin", "whole"));
  CHECK(t.shell("test -L whole/checkpoints/best").code == 0);
  // The sums are of the reference: the weights of a later step cannot make them.
  succeeds(t,
           dpo + "output_dir=late train.eval_interval=0 data.eval=[] checkpoint.keep_best=false --steps 2");
  const Outcome late = t.sh(dpo + "output_dir=late");
  CHECK(late.code == 65);
  CHECK_THAT(late.text, Contains("reference-sums-eval-1.bin: missing") && Contains("data.eval"));
  const Outcome tokens = t.sh("eval whole");
  CHECK(tokens.code == 64);
  CHECK_THAT(tokens.text, Contains("has preference pairs, whose loss a run with that task logs"));
}
