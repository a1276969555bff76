// Measurements for offload: rates of files, and of updates on the host.
#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/storage/offload.h"
#include "kernels/tensor/arena.h"
#include "runtime/bench/bench.h"

namespace ltrain {
namespace {

template <class F>
double seconds_of(F f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void bench_disk(MachineProfile& profile, const std::string& folder) {
  constexpr int64_t kWindow = 1 << 20, kWindows = 512;  // bytes, as for fp32 states
  const auto file = make_file_memory(DeviceKind::cpu, folder, {"bench", "bytes to measure by"});
  file->reserve(kWindow * kWindows);
  std::vector<char> bytes(kWindow, 'x');
  Tensor t;
  t.data = bytes.data();
  t.dtype = DType::u8;
  t.shape = {kWindow};
  const auto rate = [&](auto move) {
    return static_cast<double>(kWindow * kWindows) / seconds_of([&] {
             for (int64_t i = 0; i < kWindows; ++i) move(i * kWindow);
             file->stream().synchronize();
           });
  };
  profile.offload_write_bytes_per_second = rate([&](int64_t at) { file->store(t, at); });
  profile.offload_read_bytes_per_second = rate([&](int64_t at) { file->fetch(t, at); });
  profile.offload_measured = true;
}

void bench_host_memory(MachineProfile& profile, int64_t elements) {
  constexpr int kRounds = 5;
  constexpr double kElementBytes = 28;  // three numbers of fp32 read and written, two of bf16
  const auto stream = make_inline_stream("host");
  CpuArena arena(elements * 16 + 8 * Memory::kAlignment);
  const auto make = [&](DType t) {
    const Tensor x = arena.allocate(MemoryKind::optimizer, "states to measure by", t, {elements});
    fill_value(*stream, x, 0.01);
    return x;
  };
  const Tensor master = make(DType::f32), first = make(DType::f32), second = make(DType::f32),
               grad = make(DType::bf16), low = make(DType::bf16);
  OptimizerStep args;
  args.lr = 1e-4;
  std::vector<double> seconds;
  for (; args.step <= kRounds; ++args.step)
    seconds.push_back(seconds_of([&] {
      adamw(*stream, master, first, second, grad, low, {{elements, true, args}});
    }));
  std::sort(seconds.begin(), seconds.end());
  profile.host_memory_bytes_per_second = kElementBytes * static_cast<double>(elements) / seconds[kRounds / 2];
  profile.host_memory_source = kMeasured;
}

}  // namespace ltrain
