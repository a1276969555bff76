// The kernels of grouped products for Hopper tried in a process of their own, by the same means as
// attention's (attention_trial_test.cpp has each of its ends).
#ifdef LTRAIN_CUDA_EMULATED
#include <catch2/catch.hpp>
#include <filesystem>

#include "kernels/cuda/emulation_cuda.h"
#include "kernels/matmul/grouped/grouped_gemm.h"
#include "kernels/matmul/grouped/grouped_gemm_check.h"
#include "tests/cuda/kernel_trial.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;
using Catch::StartsWith;

namespace {

/// Answer of a process that has not asked before.
std::string found(Trial& trial, DType t) {
  forget_kernel_trials();
  return grouped_wgmma_unusable(trial.stream(), t);
}

/// x w^T of two experts, and whether it is by mma: that one alone errs where the emulated device exchanges
/// two lanes.
bool is_by_mma(Stream& s) {
  constexpr int64_t kRows = 48, kN = 64, kK = 64;
  const auto memory = cuda::device_memory(1 << 18);
  char* const at = static_cast<char*>(memory.get());
  std::vector<bf16> in(kRows * kK + 2 * kN * kK);
  for (size_t i = 0; i < in.size(); ++i) in[i] = bf16(static_cast<float>(i * 37 % 101) / 101);
  s.copy(at, in.data(), static_cast<int64_t>(2 * in.size()));
  s.synchronize();
  const auto tensor = [&](int64_t begin, Shape shape) {
    Tensor t;
    t.data = at + 2 * begin, t.dtype = DType::bf16, t.shape = shape, t.device = DeviceKind::cuda;
    return t;
  };
  const Tensor y = tensor(1 << 15, {kRows, kN});
  std::vector<float> results[2];
  for (const bool swapped : {false, true}) {
    cuda::emulated_lanes_swapped = swapped;
    grouped_matmul(s, y, tensor(0, {kRows, kK}), tensor(kRows * kK, {2, kN, kK}), {20, 28});
    std::vector<bf16> out(kRows * kN);
    s.copy(out.data(), y.data, y.bytes());
    s.synchronize();
    cuda::emulated_lanes_swapped = false;
    for (const bf16 v : out) results[swapped].push_back(static_cast<float>(v));
  }
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t col = 0; col < kN; ++col) {
      float sum = 0;
      for (int64_t i = 0; i < kK; ++i)
        sum += static_cast<float>(in[static_cast<size_t>(row * kK + i)]) *
               static_cast<float>(in[static_cast<size_t>((kRows + (row < 20 ? 0 : kN) + col) * kK + i)]);
      REQUIRE(results[0][static_cast<size_t>(row * kN + col)] == Approx(sum).epsilon(1.0 / 128));
    }
  return results[0] != results[1];
}

}  // namespace

TEST_CASE("grouped products: a process that agrees is asked once for each type, and its word is kept") {
  Trial trial("exit 0");
  CHECK(found(trial, DType::bf16) == "");
  CHECK(found(trial, DType::bf16) == "");
  CHECK(trial.asked() == std::vector<std::string>{"experts bf16 0"});
  CHECK(found(trial, DType::f16) == "");
  CHECK(trial.asked() == std::vector<std::string>{"experts bf16 0", "experts f16 0"});
  CHECK_FALSE(is_by_mma(trial.stream()));
  trial.becomes("exit 3");
  CHECK(found(trial, DType::bf16) == "");
}

TEST_CASE(
    "grouped products: kernels whose process says no, hangs or dies are not used, in later runs neither") {
  Trial trial("echo dy w differs by 3; exit 3");
  const std::string no = found(trial, DType::bf16);
  CHECK_THAT(no, StartsWith("they differ from the mma kernels: dy w differs by 3") &&
                     Contains("(kept in " + trial.cache() + "/experts-"));
  CHECK(found(trial, DType::bf16) == no);
  CHECK(trial.asked().size() == 1);
  CHECK(is_by_mma(trial.stream()));
  ::setenv("LTRAIN_GROUPED_GEMM", "wgmma", 1);
  CHECK_THROWS_WITH(is_by_mma(trial.stream()),
                    Contains("LTRAIN_GROUPED_GEMM=wgmma: these kernels are not used, because they differ") &&
                        Contains("LTRAIN_GROUPED_GEMM=mma works"));
  ::unsetenv("LTRAIN_GROUPED_GEMM");

  trial.becomes("sleep 100", 0.2);
  const std::string hangs = found(trial, DType::f16);
  CHECK_THAT(hangs, StartsWith("the process that tried them did not end in 0.2 s"));
  CHECK(found(trial, DType::f16) == hangs);
  std::filesystem::remove_all(trial.cache());
  trial.becomes("kill -ABRT $$");
  const std::string dies = found(trial, DType::f16);
  CHECK_THAT(dies, StartsWith("the process that tried them was ended by signal 6 (Aborted)"));
  CHECK(found(trial, DType::f16) == dies);
  CHECK(trial.asked().size() == 3);
}

TEST_CASE("grouped products: while a graph is recorded nothing is tried, and nothing is known afterwards") {
  Trial trial("exit 0");
  std::string why;
  const auto graph =
      trial.stream().capture([&] { why = grouped_wgmma_unusable(trial.stream(), DType::bf16); });
  CHECK(why == "they were not compared with the mma kernels before a graph was recorded");
  CHECK(trial.asked().empty());
  CHECK(found(trial, DType::bf16) == "");
}

TEST_CASE("ltrain run says why the kernels of experts for Hopper are not used, and trains") {
  check_run_says_why("model.moe.num_experts=2 model.intermediate_size=32 model.vocab_size=264",
                     "experts: one launch for all experts");
}
#endif
