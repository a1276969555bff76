// Distillation from recorded logits, `distillation.logits`, through the real program.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "tests/app/run_program.h"
#include "tests/app/training/distilled_losses.h"
#include "tests/app/trl_recipe.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

const std::string kFp64 = "precision=fp64 data.eval=[] train.eval_interval=0 checkpoint.save_interval=0 ";

/// Writes small.yaml, tiny.yaml with a hundred samples.
void make_small(const TempRun& t) {
  const Outcome o = t.shell("head -n 60 text.txt > small.txt; " + program() +
                            " data build --input small.txt --output small --tokenizer byte; sed "
                            "s/text-train/small/ tiny.yaml > small.yaml");
  INFO(o.text);
  REQUIRE(o.code == 0);
}

/// Writes NAME.yaml, small.yaml with a section of distillation, and records the logits that it asks for.
Outcome record(const TempRun& t, const std::string& name, const std::string& distillation,
               const std::string& options = "--precision fp64") {
  if (!std::filesystem::exists(t.folder() + "/small.yaml")) make_small(t);
  const std::string recipe = read_file(t.folder() + "/small.yaml");
  std::ofstream(t.folder() + "/" + name + ".yaml") << recipe << "distillation: {" << distillation << "}\n";
  return t.sh("eval " + kDistillationFiles + " --record-logits " + name + ".yaml " + options);
}

int64_t size_of_only_file(const std::string& folder) {
  int64_t size = -1, files = 0;
  for (const auto& e : std::filesystem::directory_iterator(folder))
    size = static_cast<int64_t>(e.file_size()), ++files;
  CHECK(files == 1);
  return size;
}

std::string only_file(const std::string& folder) {
  return std::filesystem::directory_iterator(folder)->path().string();
}

}  // namespace

TEST_CASE(
    "recorded logits: losses, divergences and norms are those of PyTorch with a bucket for the others") {
  TempRun t;
  const auto want = nlohmann::json::parse(read_file(kDistillationFiles + "/top-logits.json"));
  write_trl_recipe(t, "sft", "../distillation/completions.jsonl");
  REQUIRE(t.shell("sed -i '/^preference/d' sft.yaml").code == 0);
  const std::string base = read_file(t.folder() + "/sft.yaml");
  for (const auto& [name, run] : want["runs"].items()) {
    const auto& options = run["options"];
    std::ofstream(t.folder() + "/" + name + ".yaml")
        << base << "precision: fp64\ndistillation: {logits: logits-" << name
        << ", top_k: " << options["top_k"].dump() << ", kd_ratio: " << options["kd_ratio"].dump()
        << ", temperature: " << options["temperature"].dump() << "}\n";
    Outcome o = t.sh("eval " + kDistillationFiles + " --precision fp64 --record-logits " + name + ".yaml");
    INFO(name << "\n" << o.text);
    REQUIRE(o.code == 0);
    o = t.sh("run " + name + ".yaml output_dir=" + name);
    INFO(o.text);
    REQUIRE(o.code == 0);
    check_trl_steps(t, name, run["steps"], "lm_loss", "loss", 1e-9);
    check_trl_steps(t, name, run["steps"], "ce_loss", "ce", 1e-9);
    check_trl_steps(t, name, run["steps"], "kl", "kl", 1e-9);
    check_trl_steps(t, name, run["steps"], "grad_norm", "grad_norm", 1e-9);
    CHECK(std::abs(t.values("kl", name)[0] - run["steps"][0]["full_kl"].get<double>()) > 1e-6);
  }
}

TEST_CASE(
    "recorded logits: no layout changes the loss, and all logits of a vocabulary are the teacher itself") {
  TempRun t;
  const Outcome few = record(t, "few", "logits: few, top_k: 7, kd_ratio: 0.6, temperature: 1.5");
  INFO(few.text);
  REQUIRE(few.code == 0);
  CHECK_THAT(few.text, Contains(": 7 logits of each of"));
  const std::string run = "run few.yaml " + kFp64 + "train.train_steps=3 ";
  const Outcome one =
      t.sh(run + "output_dir=one parallel.data=1 parallel.zero_stage=0 train.micro_batch_size=8");
  INFO(one.text);
  REQUIRE(one.code == 0);
  CHECK(t.values("kl", "one").size() == 3);
  CHECK(t.values("kl", "one")[0] > 0.1);
  int number = 0;
  for (const char* layout :
       {"parallel.data=1 parallel.zero_stage=0 train.micro_batch_size=1",
        "parallel.data=2 parallel.zero_stage=1 train.micro_batch_size=2",
        "parallel.data=2 parallel.zero_stage=2 train.micro_batch_size=2",
        "parallel.data=2 parallel.zero_stage=3 train.micro_batch_size=4",
        "parallel.data=1 parallel.zero_stage=0 parallel.context=2",
        "parallel.data=1 parallel.zero_stage=0 parallel.pipeline=2",
        "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2 train.logits_chunk_size=40",
        "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2 parallel.sequence_parallel=true"})
    check_distilled_losses(t, run + layout, "layout" + std::to_string(number++), "one");
  // With all 257 logits nothing is left for a bucket.
  const Outcome all = record(t, "all", "logits: all, top_k: 257, kd_ratio: 0.6, temperature: 1.5");
  INFO(all.text);
  REQUIRE(all.code == 0);
  const std::string alone = kFp64 + "train.train_steps=3 parallel.data=1 parallel.zero_stage=0 ";
  const Outcome resident =
      t.sh("run small.yaml " + alone + "output_dir=resident distillation.teacher=" + kDistillationFiles +
           " distillation.kd_ratio=0.6 distillation.temperature=1.5");
  INFO(resident.text);
  REQUIRE(resident.code == 0);
  check_distilled_losses(t, "run all.yaml " + alone, "recorded", "resident");
  check_distilled_losses(t, "run all.yaml " + alone + "parallel.tensor=2 ", "recorded-tensor", "resident");
  CHECK(std::abs(t.values("kl", "one")[0] - t.values("kl", "resident")[0]) > 1e-4);
}

TEST_CASE("recorded logits: files have exactly the stated bytes, and memory those of the plan") {
  TempRun t;
  const Outcome o = record(t, "few", "logits: few, top_k: 5", "");
  INFO(o.text);
  REQUIRE(o.code == 0);
  // 4096 + samples * (8 + seq_length * (4 + k * (4 + 2))) bytes
  const size_t at = o.text.find("logits of each of ");
  REQUIRE(at != std::string::npos);
  const int64_t tokens = std::stoll(o.text.substr(at + 18));
  CHECK(tokens % 32 == 0);
  CHECK(size_of_only_file(t.folder() + "/few") == 4096 + tokens / 32 * (8 + 32 * (4 + 5 * 6)));
  const auto bytes = [&](const std::string& settings) {
    const Outcome plan = t.sh("plan few.yaml --json " + settings);
    INFO(plan.text);
    return nlohmann::json::parse(plan.text)["ranks"][0]["memory_bytes"]["arena"]["temporaries"]
        .get<int64_t>();
  };
  CHECK(bytes("distillation.top_k=6") > bytes(""));
  const Outcome run =
      t.sh("run few.yaml output_dir=run-few");  // the trainer compares used bytes with the plan's
  INFO(run.text);
  CHECK(run.code == 0);
}

TEST_CASE("recorded logits: a resumed run repeats to the bit, and in another order of the samples") {
  TempRun t;
  const Outcome o = record(t, "few", "logits: few, top_k: 5", "");
  INFO(o.text);
  REQUIRE(o.code == 0);
  const std::string run = "run few.yaml data.eval=[] train.eval_interval=0 train.train_steps=4 ";
  REQUIRE(t.sh(run + "output_dir=whole").code == 0);
  REQUIRE(t.sh(run + "output_dir=parts --steps 2").code == 0);
  const Outcome on = t.sh(run + "output_dir=parts");
  INFO(on.text);
  REQUIRE(on.code == 0);
  for (const char* key : {"lm_loss", "ce_loss", "kl", "grad_norm"})
    CHECK(t.metric(key, "parts") == t.metric(key, "whole"));
  const Outcome other = t.sh(run + "output_dir=other seed=99");
  INFO(other.text);
  CHECK(other.code == 0);
  CHECK(t.metric("lm_loss", "other") != t.metric("lm_loss", "whole"));
  // Logits of another teacher in their place.
  REQUIRE(t.sh(run + "output_dir=stopped --steps 2").code == 0);
  REQUIRE(t.shell("mv few first").code == 0);
  const Outcome again = t.sh("eval " + trl_folder() + " --record-logits few.yaml");
  INFO(again.text);
  REQUIRE(again.code == 0);
  CHECK_THAT(t.sh(run + "output_dir=stopped").text, Contains("the run began with logits of another teacher"));
}

TEST_CASE("recorded logits: what they were not made for is refused by name") {
  TempRun t;
  const Outcome o = record(t, "few", "logits: few, top_k: 5", "");
  INFO(o.text);
  REQUIRE(o.code == 0);
  const auto refused = [&](const std::string& settings, const std::string& text) {
    const Outcome run =
        t.sh("run few.yaml data.eval=[] train.eval_interval=0 output_dir=refused " + settings);
    INFO(settings << "\n" << run.text);
    CHECK(run.code != 0);
    CHECK(run.code != 70);
    CHECK_THAT(run.text, Contains(text));
  };
  refused("distillation.temperature=2", "recorded with distillation.temperature = 1, and the recipe has 2");
  refused("distillation.top_k=6", "recorded with distillation.top_k = 5, and the recipe has 6");
  refused("data.seq_length=16", "recorded with data.seq_length = 32, and the recipe has 16");
  refused("model.vocab_size=300", "recorded with model.vocab_size = 257, and the recipe has 300");
  refused("data.train='[{path: text-val}]'", "has no logits of data.train.0 = text-val");
  refused("distillation.logits=nowhere", "distillation.logits = nowhere: has no logits of data.train.0");
  refused("distillation.teacher=" + kDistillationFiles, "keep one of the two keys");
  const std::string file = only_file(t.folder() + "/few");
  REQUIRE(t.shell("cp " + file + " kept; dd if=/dev/zero of=" + file +
                  " bs=4096 seek=1 count=$(($(stat -c %s kept) / 4096 - 1)) conv=notrunc")
              .code == 0);
  refused("", "damaged, the checksum of sample");
  REQUIRE(t.shell("cp kept " + file + "; printf x | dd of=" + file + " bs=1 seek=30 conv=notrunc").code == 0);
  refused("", "damaged, its header does not match its hash");
  REQUIRE(t.shell("head -c 9000 kept > " + file).code == 0);
  refused("", "damaged, 9000 bytes, expected");
  const Outcome wrong = t.sh("eval " + kDistillationFiles + " --record-logits tiny.yaml");
  INFO(wrong.text);
  CHECK(wrong.code == 64);
  CHECK_THAT(wrong.text, Contains("the recipe names no folder for the logits"));
}
