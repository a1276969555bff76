// The attention kernels for Hopper tried in a process of their own: what becomes of each of its ends.
// Processes here are scripts, and the program with the emulated device.
#ifdef LTRAIN_CUDA_EMULATED
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "kernels/attention/attention_check.h"
#include "kernels/cuda/emulation_cuda.h"
#include "tests/cuda/kernel_trial.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;
using Catch::StartsWith;

namespace {

/// Answer of a process that has not asked before.
struct AttentionTrial : Trial {
  using Trial::Trial;
  std::string found(DType t = DType::bf16, int64_t dim = 64) {
    forget_kernel_trials();
    return wgmma_unusable(stream(), t, dim);
  }
};

}  // namespace

TEST_CASE("attention: a process that agrees is asked once for each type and head dim, and its word is kept") {
  AttentionTrial trial("exit 0");
  CHECK(trial.found() == "");
  CHECK(trial.found() == "");
  CHECK(trial.asked() == std::vector<std::string>{"attention bf16 64 0"});
  CHECK(trial.found(DType::f16, 128) == "");
  CHECK(trial.asked() == std::vector<std::string>{"attention bf16 64 0", "attention f16 128 0"});
  trial.becomes("exit 3");
  CHECK(trial.found() == "");
  ::setenv("LTRAIN_EMULATED_DRIVER", "13010", 1);  // another driver is another matter
  CHECK_THAT(trial.found(), StartsWith("they differ"));
  ::unsetenv("LTRAIN_EMULATED_DRIVER");
  CHECK(trial.found() == "");
  for (const auto& file : std::filesystem::directory_iterator(trial.cache()))
    std::ofstream(file.path()) << "used\n";
  CHECK_THAT(trial.found(), StartsWith("they differ"));  // a broken file
}

TEST_CASE(
    "attention: a process that says no, hangs or dies is why the kernels are not used, in later runs too") {
  AttentionTrial trial("echo dq differs by 3 %; exit 3");
  const std::string no = trial.found();
  CHECK_THAT(no, StartsWith("they differ from the mma kernels: dq differs by 3 %") &&
                     Contains("(kept in " + trial.cache() + "/attention-"));
  CHECK(trial.found() == no);
  CHECK(trial.asked().size() == 1);

  trial.becomes("sleep 100", 0.2);
  const std::string hangs = trial.found(DType::bf16, 128);
  CHECK_THAT(hangs, StartsWith("the process that tried them did not end in 0.2 s"));
  CHECK(trial.found(DType::bf16, 128) == hangs);

  trial.becomes("echo illegal instruction >&2; kill -ABRT $$");
  const std::string dies = trial.found(DType::f16, 128);
  CHECK_THAT(dies,
             StartsWith("the process that tried them was ended by signal 6 (Aborted): illegal instruction"));
  CHECK(trial.found(DType::f16, 128) == dies);
  CHECK(trial.asked().size() == 3);
}

TEST_CASE("attention: a process that found nothing out is no verdict for the next one") {
  AttentionTrial trial("echo no memory; exit 64");
  CHECK(trial.found() == "the process that tried them ended with exit code 64: no memory");
  trial.becomes("exit 0");
  CHECK(trial.found() == "");
  set_kernel_trial({"/no/such/program"});
  CHECK_THAT(trial.found(DType::f16), StartsWith("the process that tried them could not be started"));
  trial.becomes("exit 0");
  CHECK(trial.found(DType::f16) == "");
}

TEST_CASE(
    "attention: kernels that a process has refused are an error where they are asked for, and else mma's "
    "turn") {
  AttentionTrial trial("echo dq differs by 3 %; exit 3");
  AttentionShape shape;
  shape.seq = 40;
  const auto memory = cuda::device_memory(4 << 20);
  char* const at = static_cast<char*>(memory.get());
  const std::vector<bf16> ones(1 << 16, bf16(1.0f));
  std::vector<bf16> out(static_cast<size_t>(shape.seq * shape.head_dim), bf16(0.0f));
  Stream& s = trial.stream();
  s.copy(at, ones.data(), 2 << 16);
  const AttentionArgs args = fused_attention_args(DType::bf16, at, shape, {});
  const auto forward = [&] {
    attention_forward_cuda(s, DType::bf16, false, at + (1 << 20), at + (2 << 20), args);
  };
  ::setenv("LTRAIN_ATTENTION", "wgmma", 1);
  CHECK_THROWS_WITH(forward(),
                    Contains("LTRAIN_ATTENTION=wgmma: these kernels are not used, because they differ") &&
                        Contains("LTRAIN_ATTENTION=mma works"));
  ::unsetenv("LTRAIN_ATTENTION");
  forward();
  s.copy(out.data(), at + (1 << 20), static_cast<int64_t>(2 * out.size()));
  s.synchronize();
  CHECK(std::all_of(out.begin(), out.end(), [](bf16 x) { return x == 1.0f; }));
}

TEST_CASE("attention: while a graph is recorded nothing is tried, and nothing is known afterwards") {
  AttentionTrial trial("exit 0");
  std::string why;
  const auto graph = trial.stream().capture([&] { why = wgmma_unusable(trial.stream(), DType::bf16, 64); });
  CHECK(why == "they were not compared with the mma kernels before a graph was recorded");
  CHECK(trial.asked().empty());
  CHECK(trial.found() == "");
}

TEST_CASE("ltrain run says why attention's kernels for Hopper are not used, and trains") {
  check_run_says_why(
      "model.hidden_size=64 model.num_attention_heads=1 model.intermediate_size=24 model.vocab_size=259",
      "attention: native kernels");
}
#endif
