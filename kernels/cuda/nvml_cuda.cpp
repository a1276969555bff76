#include "kernels/cuda/nvml_cuda.h"

#include <cstdint>

#include "base/error.h"
#include "kernels/cuda/library.h"

namespace ltrain::cuda {
namespace {

// The toolkit has no nvml.h of the driver's version. These declarations are stable since R510.
using NvmlDevice = void*;
struct NvmlProcess {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned kMost = 64;
constexpr unsigned long long kNotKnown = ~0ull;  // inside containers

}  // namespace

std::string processes_on(const char* bus_id) {
  const Library nvml("libnvidia-ml", {1});
  if (!nvml.found()) return "; who has the rest is not known: libnvidia-ml.so.1 is not there";
  NvmlDevice device = nullptr;
  NvmlProcess found[kMost];
  unsigned count = kMost;
  try {
    if (nvml.function<int()>("nvmlInit_v2")() != 0 ||
        nvml.function<int(const char*, NvmlDevice*)>("nvmlDeviceGetHandleByPciBusId_v2")(bus_id, &device) !=
            0 ||
        nvml.function<int(NvmlDevice, unsigned*, NvmlProcess*)>("nvmlDeviceGetComputeRunningProcesses_v3")(
            device, &count, found) != 0)
      return "; who has the rest is not known: NVML does not say";
  } catch (const Error& e) {
    return fmt::format("; who has the rest is not known: {}", e.what());
  }
  std::string text;
  for (unsigned i = 0; i < count; ++i)
    text += found[i].used_bytes == kNotKnown
                ? fmt::format("\nprocess {} is on it", found[i].pid)
                : fmt::format("\nprocess {} holds {} bytes", found[i].pid, found[i].used_bytes);
  return text.empty() ? "; NVML names no process on it" : text;
}

std::vector<std::vector<bool>> nvlinks_between(const std::vector<std::string>& bus_ids) {
  constexpr int kNvlink = 2, kSupported = 0;  // values of nvmlGpuP2PCapsIndex_t and nvmlGpuP2PStatus_t
  const size_t n = bus_ids.size();
  std::vector<std::vector<bool>> linked(n, std::vector<bool>(n));
  const Library nvml("libnvidia-ml", {1});
  if (n < 2 || !nvml.found()) return linked;
  try {
    if (nvml.function<int()>("nvmlInit_v2")() != 0) return linked;
    const auto find = nvml.function<int(const char*, NvmlDevice*)>("nvmlDeviceGetHandleByPciBusId_v2");
    const auto status = nvml.function<int(NvmlDevice, NvmlDevice, int, int*)>("nvmlDeviceGetP2PStatus");
    std::vector<NvmlDevice> cards(n);
    for (size_t i = 0; i < n; ++i)
      if (find(bus_ids[i].c_str(), &cards[i]) != 0) return linked;
    for (size_t a = 0; a < n; ++a)
      for (size_t b = 0; b < n; ++b) {
        int said = -1;
        linked[a][b] = a != b && status(cards[a], cards[b], kNvlink, &said) == 0 && said == kSupported;
      }
  } catch (const Error&) {  // the driver lacks the function
  }
  return linked;
}

}  // namespace ltrain::cuda
