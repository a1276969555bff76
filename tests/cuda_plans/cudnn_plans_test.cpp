// cuDNN's plans for our graphs of attention, made by the library itself and compiled by NVRTC for cards that
// are described, not here: that there is one, and that its workspace is within the bound that plans are made
// with. Nothing is computed.
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <cstdio>

#include "base/json/json.h"
#include "kernels/attention/attention_cudnn_plan.h"
#include "tests/support/outcome.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct CardKind {
  int capability, processors;
  int64_t shared_bytes, memory_bytes;
};
const CardKind kCards[] = {{80, 108, 166912, int64_t{80} << 30},     // A100
                           {90, 132, 232448, int64_t{80} << 30},     // H100
                           {100, 148, 232448, int64_t{180} << 30}};  // B200

/// Description of a device in the form of cuDNN 9.19.
nlohmann::json described(const CardKind& c) {
  return {{"deviceName", "described"},
          {"cudaDeviceId", 0},
          {"deviceVer", 10 * c.capability},
          {"driverVer", 13000},
          {"maxGridSize", {2147483647, 65535, 65535}},
          {"maxBlockSize", {1024, 1024, 64}},
          {"regsPerBlock", 65536},
          {"multiProcessorCount", c.processors},
          {"smClockRateKHz", 1400000},
          {"memClockRateKHz", 1500000},
          {"l2CacheSize", 40 << 20},
          {"warpSize", 32},
          {"maxSharedMemoryPerBlock", 48 << 10},
          {"maxSharedMemoryPerBlockOptin", c.shared_bytes},
          {"reservedSharedMemoryPerBlock", 1024},
          {"maxRegistersPerSM", 65536},
          {"pciDeviceId", 0},
          {"maxCtasPerSM", 32},
          {"maxThreadsPerBlock", 1024},
          {"maxThreadsPerSM", 2048},
          {"isTccDriver", 0},
          {"supportCoopLaunch", 1},
          {"totalGlobalMem", c.memory_bytes}};
}

struct Case {
  const char* name;
  int64_t batch, seq, heads, kv_heads, dim;
  DType type = DType::bf16;
  AttentionShape shape() const {
    AttentionShape s;
    s.batch = batch, s.seq = seq, s.heads = heads, s.kv_heads = kv_heads, s.head_dim = dim;
    return s;
  }
};
const Case kCases[] = {
    {"Llama-3.2-1B", 4, 2048, 32, 8, 64},
    {"Llama-3.2-1B, fp16", 4, 2048, 32, 8, 64, DType::f16},
    {"GPT-2 1.5B", 8, 1024, 25, 25, 64},
    {"Llama-3.1-8B", 1, 8192, 32, 8, 128},
    {"Llama-3.1-8B, 2", 2, 4096, 32, 8, 128},
    {"odd length", 3, 333, 6, 2, 96},
    {"head dim 80", 2, 1024, 8, 8, 80},
    {"one key head", 2, 1000, 16, 1, 128},
    {"tiny", 2, 10, 2, 1, 8},
    {"67 positions", 3, 67, 3, 1, 64},
    {"70 positions, 72", 2, 70, 2, 1, 72},
    {"comparison", 2, 200, 4, 2, 128},
    {"head dim 192", 1, 1024, 8, 8, 192},
    {"head dim 256", 1, 2048, 8, 4, 256},
};

/// The same request as attention_cudnn.cpp makes for packed queries, keys and values.
CudnnAttention description(const Case& c, bool backward) {
  CudnnAttention a;
  a.backward = backward;
  a.type = c.type;
  a.batch = c.batch, a.heads = c.heads, a.kv_heads = c.kv_heads, a.seq = c.seq, a.head_dim = c.dim;
  a.scale = 0.1;
  const auto rows = [&](int64_t width) { return CudnnStrides{c.seq * width, c.dim, width}; };
  a.q = a.k = a.v = rows(c.shape().qkv_width());
  a.out = rows(c.heads * c.dim);
  a.lse = {c.heads * c.seq, c.seq, 1};
  if (backward) a.dq = a.dk = a.dv = a.q, a.dout = a.out;
  a.workspace = backward ? cudnn_backward_workspace(c.shape()) : int64_t{32} << 20;
  return a;
}

bool can_plan() {
  static void* const driver = ::dlopen(LTRAIN_DRIVER_STANDIN, RTLD_NOW | RTLD_GLOBAL);
  INFO(LTRAIN_DRIVER_STANDIN);
  REQUIRE(driver);
  const std::string why = cudnn_missing();
  if (!why.empty()) skip_test(why);
  return why.empty();
}

/// The frontend: backward of wider heads is of Hopper alone.
bool hopper_alone(const Case& c, bool backward) { return backward && c.dim > 128; }

}  // namespace

TEST_CASE("cuDNN has plans for attention, forward and backward, within the bound of their workspace") {
  if (!can_plan()) return;
  std::printf("cuDNN %s\n| attention | way | card | workspace | bound |\n|---|---|---|---|---|\n",
              cudnn_version().c_str());
  for (const Case& c : kCases)
    for (bool backward : {false, true}) {
      const CudnnAttention a = description(c, backward);
      int64_t most = 0;
      for (const CardKind& card : kCards) {
        CAPTURE(c.name, backward, card.capability);
        const CudnnPlanned p = cudnn_plan_for(a, card.capability, described(card).dump());
        std::printf("| %s | %s | sm_%d | %s | %lld |\n", c.name, backward ? "backward" : "forward",
                    card.capability, p.refused.empty() ? std::to_string(p.workspace).c_str() : "refused",
                    static_cast<long long>(a.workspace));
        if (hopper_alone(c, backward) && card.capability != 90) {
          CHECK(p.refused.find("128") != std::string::npos);
          continue;
        }
        CHECK(p.refused == "");
        CHECK(p.workspace <= a.workspace);
        most = std::max(most, p.workspace);
      }
      // The bound is not merely a large number. Short lengths are rounded up.
      if (backward && c.dim <= 128 && c.seq >= 1000)
        CHECK(static_cast<double>(most) > 0.8 * static_cast<double>(a.workspace));
    }
}

TEST_CASE("cuDNN plans the deterministic backward of a slice of heads within the bound of its workspace") {
  if (!can_plan()) return;
  std::printf("cuDNN %s\n| attention | slice | card | workspace | bound |\n|---|---|---|---|---|\n",
              cudnn_version().c_str());
  for (const Case& c : kCases)
    for (const bool smallest : {false, true}) {
      CudnnAttention a = description(c, true);
      const CudnnSlice slice = cudnn_slice(c.shape(), smallest ? 0 : kCudnnSliceBytes);
      a.deterministic = true;
      a.batch = slice.samples, a.kv_heads = slice.kv_heads, a.heads = slice.kv_heads * (c.heads / c.kv_heads);
      a.workspace = slice.bytes;
      int64_t most = 0;
      for (const CardKind& card : kCards) {
        CAPTURE(c.name, smallest, card.capability);
        const CudnnPlanned p = cudnn_plan_for(a, card.capability, described(card).dump());
        std::printf("| %s | %lld x %lld | sm_%d | %s | %lld |\n", c.name, static_cast<long long>(a.batch),
                    static_cast<long long>(a.heads), card.capability,
                    p.refused.empty() ? std::to_string(p.workspace).c_str() : "refused",
                    static_cast<long long>(a.workspace));
        if (hopper_alone(c, true) && card.capability != 90) continue;
        CHECK(p.refused == "");
        CHECK(p.workspace <= a.workspace);
        most = std::max(most, p.workspace);
      }
      if (c.dim <= 128 && c.seq >= 1000)
        CHECK(static_cast<double>(most) > 0.8 * static_cast<double>(a.workspace));
    }
}

TEST_CASE("cuDNN's plans are refused for less memory than they need, and for what is no attention") {
  if (!can_plan()) return;
  const CardKind& hopper = kCards[1];
  const std::string card = described(hopper).dump();
  CudnnAttention a = description(kCases[0], true);
  const int64_t needs = cudnn_plan_for(a, hopper.capability, card).workspace;
  REQUIRE(needs > 0);
  a.workspace = needs;
  CHECK(cudnn_plan_for(a, hopper.capability, card).refused == "");
  a.workspace = needs - 1;
  CHECK(cudnn_plan_for(a, hopper.capability, card).refused != "");
  a = description(kCases[0], false);
  a.kv_heads = 7;
  CHECK(cudnn_plan_for(a, hopper.capability, card).refused != "");
  auto without = described(hopper);
  without.erase("multiProcessorCount");
  CHECK(cudnn_plan_for(description(kCases[0], false), hopper.capability, without.dump()).refused != "");
}
