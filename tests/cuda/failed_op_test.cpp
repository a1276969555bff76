// A kernel that fails is named with its op and sizes, and a card that cannot run this build's kernels says so
// before the run takes anything: by the program, with the emulated device.
#ifdef LTRAIN_CUDA_EMULATED
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/app/run_program.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

Outcome train(const TempRun& run, const std::string& variables) {
  return run.sh(
      "run tiny.yaml device=cuda parallel.data=1 parallel.zero_stage=0 precision=bf16 "
      "model.num_hidden_layers=2 model.vocab_size=264 data.seq_length=8 train.micro_batch_size=2 "
      "train.global_batch_size=2 train.train_steps=1 train.eval_interval=0 checkpoint.save_interval=0 "
      "checkpoint.save_at_end=false checkpoint.resume=never schedule.lr_decay_steps=4 "
      "schedule.lr_warmup_steps=1 attention_backend=own",
      "LTRAIN_CACHE_DIR=" + run.folder() + "/cache " + variables);
}

const std::string kOp = "the last op: swiglu_forward (t = bf16, rows = 16, cols = 64) of layers.0";

}  // namespace

TEST_CASE(
    "LTRAIN_CUDA_SYNC=1 names the op that failed, with its sizes and layer, and without it the last one is "
    "named") {
  const TempRun run;
  REQUIRE(run.build().code == 0);
  const Outcome late = train(run, "LTRAIN_EMULATED_FAULT=swiglu_forward");
  INFO(late.text);
  CHECK(late.code != 0);
  CHECK_THAT(late.text, Contains("an illegal memory access was encountered\nthe last op: ") &&
                            Contains("; it or one before it failed: LTRAIN_CUDA_SYNC=1 waits after each"));
  CHECK_THAT(late.text, !Contains(kOp));  // nobody had waited for it yet

  const Outcome at_once = train(run, "LTRAIN_EMULATED_FAULT=swiglu_forward LTRAIN_CUDA_SYNC=1");
  INFO(at_once.text);
  CHECK(at_once.code == late.code);
  CHECK_THAT(at_once.text, Contains("an illegal memory access was encountered\n" + kOp) &&
                               Contains("; it failed, or one that another stream had before it"));

  CHECK(train(run, "LTRAIN_CUDA_SYNC=1").code == 0);
  const Outcome wrong = train(run, "LTRAIN_CUDA_SYNC=yes");
  CHECK(wrong.code == 64);
  CHECK_THAT(wrong.text, Contains("LTRAIN_CUDA_SYNC = yes: must be 0 or 1"));
}

TEST_CASE("a card that cannot run this build's kernels is refused by name before the run takes anything") {
  const TempRun run;
  REQUIRE(run.build().code == 0);
  const Outcome refused =
      train(run, "LTRAIN_EMULATED_PROBE='no kernel image is available for execution on the device'");
  INFO(refused.text);
  CHECK(refused.code == 64);
  CHECK_THAT(refused.text,
             Contains("GPU 0 (emulated, compute capability 9.0) cannot run the kernels of this build: no "
                      "kernel image is available for execution on the device; what would help: a build for "
                      "it (-DCMAKE_CUDA_ARCHITECTURES=90-real), or other GPUs in CUDA_VISIBLE_DEVICES"));
  CHECK_FALSE(std::filesystem::exists(run.folder() + "/run/plan.json"));
  CHECK(train(run, "").code == 0);
}
#endif
