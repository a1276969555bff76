// Distillation from a teacher, `distillation.teacher`, through the real program.
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "tests/app/run_program.h"
#include "tests/app/training/distilled_losses.h"
#include "tests/app/trl_recipe.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

/// The first lines of text, in fp64, by the Llama of tests/golden/distillation.
const std::string kDistill = "run tiny.yaml distillation.teacher=" + kDistillationFiles +
                             " distillation.kd_ratio=0.6 distillation.temperature=1.5 data.eval=[] "
                             "train.eval_interval=0 checkpoint.save_interval=0 ";

}  // namespace

TEST_CASE("distillation: losses, divergences and norms are those of PyTorch and TRL") {
  TempRun t;
  const auto want = nlohmann::json::parse(read_file(kDistillationFiles + "/losses.json"));
  write_trl_recipe(t, "sft", "../distillation/completions.jsonl");
  REQUIRE(t.shell("sed -i '/^preference/d' sft.yaml").code == 0);
  for (const auto& [name, run] : want["runs"].items()) {
    const auto& options = run["options"];
    const Outcome o =
        t.sh("run sft.yaml distillation.teacher=" + kDistillationFiles +
             " distillation.kd_ratio=" + options["kd_ratio"].dump() +
             " distillation.temperature=" + options["temperature"].dump() + " 'output_dir=" + name + "'");
    INFO(name << "\n" << o.text);
    REQUIRE(o.code == 0);
    check_trl_steps(t, name, run["steps"], "lm_loss", "loss", 1e-5);
    check_trl_steps(t, name, run["steps"], "ce_loss", "ce", 1e-5);
    check_trl_steps(t, name, run["steps"], "kl", "kl", 1e-5);
    check_trl_steps(t, name, run["steps"], "grad_norm", "grad_norm", 1e-5);
    const double first = t.values("lm_loss", name)[0];
    for (const auto& [mistake, loss] : run["steps"][0]["mistakes"].items()) {
      INFO(mistake);
      if (mistake != "no square" || options["temperature"] != 1.0)
        CHECK(std::abs(first - loss.get<double>()) > 1e-3);
    }
  }
}

TEST_CASE("distillation: the loss does not depend on micro-batch, accumulation or layout") {
  TempRun t;
  const std::string fp64 = kDistill + "precision=fp64 train.train_steps=3 ";
  const Outcome one =
      t.sh(fp64 + "output_dir=one parallel.data=1 parallel.zero_stage=0 train.micro_batch_size=8");
  INFO(one.text);
  REQUIRE(one.code == 0);
  CHECK_THAT(one.text, Contains("teacher: "));
  const std::vector<double> loss = t.values("lm_loss", "one"), ce = t.values("ce_loss", "one"),
                            kl = t.values("kl", "one");
  REQUIRE(loss.size() == 3);
  for (size_t i = 0; i < 3; ++i) CHECK(std::abs(loss[i] - (0.4 * ce[i] + 0.6 * 2.25 * kl[i])) < 1e-12);
  CHECK(kl[0] > 0.1);
  // 45,184 weights in fp64, in full, or in halves of buckets that are padded to equal parts.
  for (const auto& [layout, bytes] : {std::pair("parallel.data=1 parallel.zero_stage=0", 361472),
                                      std::pair("parallel.data=2 parallel.zero_stage=3", 180864)}) {
    const Outcome plan = t.sh("plan" + fp64.substr(3) + layout + " --json");
    INFO(plan.text);
    const auto teacher = nlohmann::json::parse(plan.text)["ranks"][0]["teacher"];
    CHECK(teacher["bytes"] == bytes);
    CHECK(teacher["seconds"] > 0);
  }
  // States and their windows are the student's alone, also where updates widen what has 16 bits.
  std::set<int64_t> states;
  for (const char* drop : {"", "~distillation "}) {
    const Outcome plan = t.sh("plan" + kDistill.substr(3) + "precision=bf16 " + drop + "--json");
    INFO(plan.text);
    states.insert(
        nlohmann::json::parse(plan.text)["ranks"][0]["memory_bytes"]["arena"]["optimizer"].get<int64_t>());
  }
  CHECK(states.size() == 1);
  // A search prices the student's layers, and leaves out layouts over which the teacher's heads do not
  // divide.
  const Outcome found =
      t.sh("plan" + fp64.substr(3) + "parallel.data=-1 parallel.zero_stage=0 --search --gpus 2");
  INFO(found.text);
  CHECK(found.code == 0);
  int run = 0;
  for (const char* layout : {"parallel.data=1 parallel.zero_stage=0 train.micro_batch_size=1",
                             "parallel.data=2 parallel.zero_stage=1 train.micro_batch_size=2",
                             "parallel.data=2 parallel.zero_stage=3 train.micro_batch_size=4",
                             "parallel.data=1 parallel.zero_stage=0 parallel.context=2"})
    check_distilled_losses(t, fp64 + layout, "layout" + std::to_string(run++), "one");
  // The teacher's five heads do not divide over two ranks: here another one teaches.
  const std::string other = fp64 + "distillation.teacher=" + trl_folder() + " train.logits_chunk_size=40 ";
  const Outcome whole = t.sh(other + "output_dir=other parallel.data=1 parallel.zero_stage=0");
  INFO(whole.text);
  REQUIRE(whole.code == 0);
  for (const char* layout :
       {"parallel.data=1 parallel.zero_stage=0 parallel.tensor=2",
        "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2 parallel.sequence_parallel=true"})
    check_distilled_losses(t, other + layout, "layout" + std::to_string(run++), "other");
}

TEST_CASE("distillation: checkpoints teach, resumed runs repeat to the bit, and a student needs no teacher") {
  TempRun t;
  REQUIRE(
      t.sh("run tiny.yaml output_dir=big model.hidden_size=48 model.num_hidden_layers=3 train.train_steps=2 "
           "model.tie_word_embeddings=true data.eval=[] train.eval_interval=0 seed=5")
          .code == 0);
  const std::string run =
      "run tiny.yaml data.eval=[] train.eval_interval=0 distillation.teacher=teacher train.train_steps=4 ";
  REQUIRE(t.shell("mv big teacher").code == 0);
  const Outcome whole = t.sh(run + "output_dir=whole");
  INFO(whole.text);
  REQUIRE(whole.code == 0);
  REQUIRE(t.sh(run + "output_dir=parts --steps 2").code == 0);
  const Outcome on = t.sh(run + "output_dir=parts");
  INFO(on.text);
  REQUIRE(on.code == 0);
  for (const char* key : {"lm_loss", "ce_loss", "kl", "grad_norm"})
    CHECK(t.metric(key, "parts") == t.metric(key, "whole"));
  CHECK(t.values("kl", "whole").size() == 4);
  // A folder that the checkpoint was exported to gives the same bits.
  REQUIRE(t.sh("export teacher exported").code == 0);
  const Outcome folder = t.sh(run + "output_dir=folder distillation.teacher=exported");
  INFO(folder.text);
  REQUIRE(folder.code == 0);
  CHECK(t.metric("lm_loss", "folder") == t.metric("lm_loss", "whole"));
  CHECK(folder.text.find("teacher's tokenizer") == std::string::npos);
  REQUIRE(t.shell("cp " + std::string(LTRAIN_SOURCE_DIR) +
                  "/tests/golden/tokenizers/llama3.tokenizer.json exported/tokenizer.json")
              .code == 0);
  CHECK_THAT(t.sh(run + "output_dir=other distillation.teacher=exported").text,
             Contains("note: the teacher's tokenizer is huggingface") && Contains("of data.train is byte"));
  REQUIRE(t.shell("rm -r teacher").code == 0);
  const Outcome text = t.sh("generate whole --prompt line --tokens 3");
  INFO(text.text);
  CHECK(text.code == 0);
  CHECK(t.sh("export whole student").code == 0);
}

TEST_CASE("distillation: a teacher that does not fit is refused before the run, by name") {
  TempRun t;
  const auto refused = [&](const std::string& settings, int code, const std::string& text) {
    const Outcome o = t.sh(kDistill + settings + " output_dir=refused");
    INFO(settings << "\n" << o.text);
    CHECK(o.code == code);
    CHECK_THAT(o.text, Contains(text));
  };
  refused("model.vocab_size=300", 64, "has a distribution over 257 tokens, and model.vocab_size is 300");
  refused("distillation.teacher=nowhere", 73, "distillation.teacher = nowhere: there is no such folder");
  refused("data.seq_length=300 model.max_position_embeddings=300", 64, "model.max_position_embeddings");
  refused("parallel.tensor=2 parallel.data=1 parallel.zero_stage=0", 64, "num_attention_heads");
  REQUIRE(t.sh("run tiny.yaml output_dir=experts model.moe.num_experts=4 model.moe.top_k=2 "
               "model.architecture=mixtral train.train_steps=1 parallel.data=1 data.eval=[] "
               "train.eval_interval=0")
              .code == 0);
  refused("distillation.teacher=experts", 64, "has 4 experts in a layer");
}
