#include "kernels/cuda/nvml.h"

#include <cstdint>
#include <set>
#include <utility>

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
struct NvmlMemory {                              // nvmlMemory_v2_t
  unsigned version = sizeof(NvmlMemory) | 2u << 24;
  unsigned long long total, reserved, free, used;
};
static_assert(sizeof(NvmlMemory) == 40);

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

struct GpuSensors::State {
  Library nvml{"libnvidia-ml", {1}};
  NvmlDevice card = nullptr;
  std::set<std::string> refused;  // the number's name
  std::vector<std::string> news;

  void refuse(const std::string& what, const std::string& why) {
    if (refused.insert(what).second) news.push_back(fmt::format("{} ({})", what, why));
  }

  /// Calls an NVML function. Returns true on success, else notes that `what` is refused.
  template <class... A>
  bool call(const char* what, const char* function, A... arguments) {
    int result = 0;
    try {
      result = nvml.function<int(A...)>(function)(arguments...);
      if (result == 0) return true;
      refuse(what, nvml.function<const char*(int)>("nvmlErrorString")(result));
    } catch (const Error& e) {  // the driver lacks the function
      refuse(what, e.what());
    }
    return false;
  }

  /// Asks for a number of the card, times `scale`.
  template <class V, class... A>
  std::optional<double> ask(const char* what, const char* function, double scale, A... arguments) {
    V value = 0;
    if (!call(what, function, card, arguments..., &value)) return std::nullopt;
    return scale * static_cast<double>(value);
  }

  std::optional<double> memory_used_mib() {
    NvmlMemory memory{};
    if (!call("memory in use", "nvmlDeviceGetMemoryInfo_v2", card, &memory)) return std::nullopt;
    return static_cast<double>(memory.used) / (1 << 20);
  }

  std::optional<double> nvlink_replays() {
    constexpr unsigned kMostLinks = 36;
    constexpr int kReplays = 0;  // NVML_NVLINK_ERROR_DL_REPLAY
    std::optional<double> sum;
    try {
      const auto count = nvml.function<int(NvmlDevice, unsigned, int, unsigned long long*)>(
          "nvmlDeviceGetNvLinkErrorCounter");
      for (unsigned link = 0; link < kMostLinks; ++link) {
        unsigned long long value = 0;
        if (count(card, link, kReplays, &value) == 0) sum = sum.value_or(0) + static_cast<double>(value);
      }
    } catch (const Error&) {  // the driver lacks the function
    }
    if (!sum) refuse("NVLink replays", "no link counts them");
    return sum;
  }
};

GpuSensors::GpuSensors(const std::string& bus_id) : state_(std::make_unique<State>()) {
  State& s = *state_;
  if (!s.nvml.found()) {
    s.refuse("numbers of the GPU", "libnvidia-ml.so.1 is not there");
    return;
  }
  constexpr const char* kAll = "numbers of the GPU";
  if (!s.call(kAll, "nvmlInit_v2") ||
      !s.call(kAll, "nvmlDeviceGetHandleByPciBusId_v2", bus_id.c_str(), &s.card))
    s.card = nullptr;
}

GpuSensors::~GpuSensors() = default;

GpuReading GpuSensors::read() {
  constexpr int kSm = 1, kGpu = 0, kCorrected = 0, kUncorrected = 1, kSinceLoaded = 0;  // enums of nvml.h
  State& s = *state_;
  GpuReading r;
  if (!s.card) return r;
  r.sm_clock_mhz = s.ask<unsigned>("SM clock", "nvmlDeviceGetClockInfo", 1, kSm);
  r.power_w = s.ask<unsigned>("power", "nvmlDeviceGetPowerUsage", 1e-3);
  r.energy_j = s.ask<unsigned long long>("energy", "nvmlDeviceGetTotalEnergyConsumption", 1e-3);
  r.temperature_c = s.ask<unsigned>("temperature", "nvmlDeviceGetTemperature", 1, kGpu);
  // The name before driver 535; later drivers have it too.
  r.throttle_reasons =
      s.ask<unsigned long long>("throttle reasons", "nvmlDeviceGetCurrentClocksThrottleReasons", 1);
  r.memory_used_mib = s.memory_used_mib();
  r.ecc_corrected = s.ask<unsigned long long>("corrected ECC errors", "nvmlDeviceGetTotalEccErrors", 1,
                                              kCorrected, kSinceLoaded);
  r.ecc_uncorrected = s.ask<unsigned long long>("uncorrected ECC errors", "nvmlDeviceGetTotalEccErrors", 1,
                                                kUncorrected, kSinceLoaded);
  r.nvlink_replays = s.nvlink_replays();
  r.pcie_replays = s.ask<unsigned>("PCIe replays", "nvmlDeviceGetPcieReplayCounter", 1);
  return r;
}

std::vector<std::string> GpuSensors::refusals() { return std::exchange(state_->news, {}); }

}  // namespace ltrain::cuda
