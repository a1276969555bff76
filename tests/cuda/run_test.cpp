// The program with device: cuda: a run from its recipe to its checkpoints, evaluation, generation, and back
// to the CPU. Without a GPU it is built with the emulated device.
#include "tests/app/run_program.h"
#include "tests/cuda/twin.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

const char* kRecipe =
    "run tiny.yaml parallel.data=1 parallel.zero_stage=0 model.hidden_size=16 model.intermediate_size=24 "
    "model.vocab_size=259 data.seq_length=8 train.micro_batch_size=2 train.global_batch_size=4 "
    "train.train_steps=4 train.eval_steps=1 schedule.lr_decay_steps=4 ";

std::vector<double> losses(const TempRun& run, const std::string& name, const std::string& key = "lm_loss") {
  std::vector<double> out;
  for (const std::string& s : run.metric(key, name)) out.push_back(std::stod(s.substr(s.find(':') + 1)));
  return out;
}

void require_close(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] / b[i] - 1) < 1e-5);
}

}  // namespace

TEST_CASE(
    "ltrain run on cuda: losses of the CPU's run, exact memory, checkpoints that either device resumes") {
  if (!have_cuda()) return;
  const TempRun run;
  REQUIRE(run.build().code == 0);
  const auto train = [&](const std::string& settings) {
    const Outcome o = run.sh(kRecipe + settings);
    INFO(o.text);
    REQUIRE(o.code == 0);
    return o.text;
  };
  train("device=cpu output_dir=cpu");
  const std::string said = train("device=cuda output_dir=cuda");
  CHECK(said.find("of one ") != std::string::npos);
  REQUIRE(losses(run, "cpu").size() == 4);
  require_close(losses(run, "cpu"), losses(run, "cuda"));
  require_close(losses(run, "cpu", "grad_norm"), losses(run, "cuda", "grad_norm"));
  require_close(losses(run, "cpu", "eval_loss"), losses(run, "cuda", "eval_loss"));

  const auto plan = nlohmann::json::parse(read_text(run.folder() + "/cuda/plan.json"));
  const auto used = nlohmann::json::parse(read_text(run.folder() + "/cuda/logs/usage-00000.json"));
  CHECK(plan["device"] == "cuda");
  CHECK(plan["ranks"][0]["memory_bytes"]["arena"]["total"] == used["arena_bytes"]);
  CHECK(plan["ranks"][0]["memory_bytes"]["staging"].get<int64_t>() > 0);

  // What one device saved the other goes on from, and both come to the same.
  train("device=cuda output_dir=there train.train_steps=2");
  train("device=cpu output_dir=there");
  require_close(losses(run, "cpu"), losses(run, "there"));
  train("device=cpu output_dir=back train.train_steps=2");
  train("device=cuda output_dir=back");
  require_close(losses(run, "cpu"), losses(run, "back"));

  const std::string evaluated = run.sh("eval cuda --device cuda --samples 4").text;
  CHECK(evaluated == run.sh("eval cuda --device cpu --samples 4").text);
  CHECK(evaluated.find("perplexity") != std::string::npos);
  std::ofstream(run.folder() + "/q.jsonl")
      << R"({"question": "line", "choices": ["of", "zzz"], "answer": 0})";
  const Outcome answered = run.sh("eval cuda --device cuda --choices q.jsonl");
  INFO(answered.text);
  CHECK(answered.text.find("accuracy ") != std::string::npos);
  CHECK(answered.text == run.sh("eval cuda --device cpu --choices q.jsonl").text);
  const std::string options = " --prompt line --tokens 3 --temperature 0 --json 2>/dev/null";
  const Outcome there = run.sh("generate cuda --device cuda" + options);
  CHECK(there.code == 0);
  CHECK(there.text == run.sh("generate cuda --device cpu" + options).text);
}

TEST_CASE("a second rank on a GPU is refused before anything is started") {
  if (!have_cuda()) return;
  const TempRun run;
  const Outcome o = run.sh("run tiny.yaml device=cuda parallel.data=2");
  CHECK(o.code == 64);
  INFO(o.text);
  CHECK(o.text.find("device = cuda: 2 ranks on ") != std::string::npos);
  CHECK(o.text.find("nearest valid value: cpu") != std::string::npos);
}

#ifdef LTRAIN_CUDA_EMULATED
TEST_CASE(
    "captured stages are refused where the driver does not order their transfers, before any is started") {
  const TempRun run;
  const std::string recipe = "run tiny.yaml device=cuda parallel.pipeline=2 parallel.data=1 cuda_graphs=on";
  const Outcome old = run.sh(recipe, "LTRAIN_EMULATED_DRIVER=12080");
  INFO(old.text);
  CHECK(old.code == 64);
  CHECK(old.text.find(
            "cuda_graphs = on: captured transfers of parallel.pipeline = 2 need a driver for CUDA 12.9 "
            "or newer, and this one is for 12.8; nearest valid value: off") != std::string::npos);
  const Outcome off = run.sh(recipe + " cuda_graphs=off", "LTRAIN_EMULATED_DRIVER=12080"),
                newer = run.sh(recipe, "LTRAIN_EMULATED_DRIVER=12090");
  for (const Outcome& o : {off, newer}) CHECK(o.text.find("need a driver") == std::string::npos);
}

TEST_CASE("a card that is too small: refused by its plan, and by the allocation with the plan's table") {
  const TempRun run;
  const std::string recipe = kRecipe + std::string("device=cuda ");
  const Outcome planned = run.sh(recipe, "LTRAIN_EMULATED_BYTES=1000000");
  INFO(planned.text);
  CHECK(planned.code == 78);
  CHECK(planned.text.find("the plan exceeds the GPU's memory: a rank needs") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(run.folder() + "/run"));
  const Outcome forced = run.sh(recipe + "--force", "LTRAIN_EMULATED_BYTES=100000");
  INFO(forced.text);
  CHECK(forced.code == 64);
  CHECK(forced.text.find("bytes of memory of an emulated GPU; 100000 of its 100000 bytes are free") !=
        std::string::npos);
  CHECK(forced.text.find("memory of rank 0") != std::string::npos);
  CHECK(forced.text.find("optimizer") != std::string::npos);
}
#endif
