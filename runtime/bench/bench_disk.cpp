// Measurement of file rates for offload.
#include <chrono>
#include <vector>

#include "kernels/storage/offload.h"
#include "runtime/bench/bench.h"

namespace ltrain {

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
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < kWindows; ++i) move(i * kWindow);
    file->stream().synchronize();
    return static_cast<double>(kWindow * kWindows) /
           std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  profile.offload_write_bytes_per_second = rate([&](int64_t at) { file->store(t, at); });
  profile.offload_read_bytes_per_second = rate([&](int64_t at) { file->fetch(t, at); });
  profile.offload_measured = true;
}

}  // namespace ltrain
