#include "runtime/telemetry/gpu_numbers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "parallel/comm/host_collectives.h"

namespace ltrain {

const std::array<GpuNumber, 10>& gpu_numbers() {
  static const std::array<GpuNumber, 10> all{{
      {&GpuReading::sm_clock_mhz, "sm_clock_mhz", "DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock in MHz."},
      {&GpuReading::power_w, "power_w", "DCGM_FI_DEV_POWER_USAGE", "gauge", "Power in W."},
      {&GpuReading::energy_j, "energy_j", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter",
       "Energy in mJ since the driver was loaded.", 1e3},
      {&GpuReading::temperature_c, "temperature_c", "DCGM_FI_DEV_GPU_TEMP", "gauge",
       "Temperature in degrees Celsius."},
      {&GpuReading::throttle_reasons, "throttle_reasons", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "gauge",
       "Bits of nvmlClocksEventReasons."},
      {&GpuReading::memory_used_mib, "memory_used_mib", "DCGM_FI_DEV_FB_USED", "gauge",
       "Memory in use in MiB, by all processes."},
      {&GpuReading::ecc_corrected, "ecc_corrected", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter",
       "Corrected ECC errors since the driver was loaded."},
      {&GpuReading::ecc_uncorrected, "ecc_uncorrected", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter",
       "Uncorrected ECC errors since the driver was loaded."},
      {&GpuReading::nvlink_replays, "nvlink_replays", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
       "counter", "Replays of all NVLinks."},
      {&GpuReading::pcie_replays, "pcie_replays", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter",
       "Replays on PCIe."},
  }};
  return all;
}

unsigned throttle_bits(const GpuReading& r) {
  const double bits = r.throttle_reasons.value_or(0);
  return bits >= 0 && bits < 65536 ? static_cast<unsigned>(bits) : 0;
}

std::string throttle_text(const GpuReading& r) {
  const unsigned bits = throttle_bits(r);
  std::string text;
  const auto add = [&](unsigned mask, const char* name) {
    if (bits & mask) text += (text.empty() ? "" : ", ") + std::string(name);
  };
  add(kThermal, "temperature");
  add(kPowerBrake, "power brake of the system");
  add(kPowerCap, "power cap");
  // The general bit is set beside the thermal one and the brake's.
  if (!(bits & (kHardwareThermal | kPowerBrake))) add(kHardwareSlowdown, "hardware slowdown");
  return text;
}

void GpuMean::add(const GpuReading& r) {
  ++readings_;
  for (const GpuNumber& n : gpu_numbers())
    if (r.*n.member) newest_.*n.member = r.*n.member;
  if (r.sm_clock_mhz) clock_.sum += *r.sm_clock_mhz, ++clock_.count;
  if (r.power_w) power_.sum += *r.power_w, ++power_.count;
  if (r.temperature_c) hottest_ = std::max(hottest_.value_or(*r.temperature_c), *r.temperature_c);
  const unsigned bits = throttle_bits(r);
  for (unsigned i = 0; i < reasons_.size(); ++i) reasons_[i] += bits >> i & 1;
}

GpuReading GpuMean::mean() const {
  GpuReading m = newest_;
  if (clock_.count > 0) m.sm_clock_mhz = clock_.sum / static_cast<double>(clock_.count);
  if (power_.count > 0) m.power_w = power_.sum / static_cast<double>(power_.count);
  m.temperature_c = hottest_;
  if (!m.throttle_reasons) return m;
  unsigned often = 0;
  for (unsigned i = 0; i < reasons_.size(); ++i)
    if (reasons_[i] > 0 && 2 * reasons_[i] >= readings_) often |= 1u << i;
  m.throttle_reasons = often;
  return m;
}

std::vector<GpuReading> gather_readings(Communicator& group, Stream& stream, const GpuReading& mine) {
  constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();
  std::vector<int64_t> numbers;
  for (const GpuNumber& n : gpu_numbers())
    numbers.push_back(std::bit_cast<int64_t>((mine.*n.member).value_or(kAbsent)));
  const std::vector<int64_t> all = gather_numbers(group, stream, numbers);
  std::vector<GpuReading> out(all.size() / numbers.size());
  size_t at = 0;
  for (GpuReading& r : out)
    for (const GpuNumber& n : gpu_numbers()) {
      const double value = std::bit_cast<double>(all[at++]);
      if (!std::isnan(value)) r.*n.member = value;
    }
  return out;
}

std::string gpu_summary(const std::vector<GpuReading>& runs, double tokens) {
  std::vector<std::string> parts;
  const auto sum_of = [&](std::optional<double> GpuReading::*member, double& count) {
    double sum = 0;
    count = 0;
    for (const GpuReading& r : runs)
      if (r.*member) sum += *(r.*member), ++count;
    return sum;
  };
  double known = 0;
  // A sum that lacks a GPU would be taken for that of all.
  if (const double joules = sum_of(&GpuReading::energy_j, known); known == static_cast<double>(runs.size()))
    parts.push_back(fmt::format("{:.1f} kJ{}", 1e-3 * joules,
                                tokens > 0 ? fmt::format(", {:.3g} J a token", joules / tokens) : ""));
  if (const double clocks = sum_of(&GpuReading::sm_clock_mhz, known); known > 0)
    parts.push_back(fmt::format("mean SM clock {:.0f} MHz", clocks / known));
  if (const double watts = sum_of(&GpuReading::power_w, known); known > 0)
    parts.push_back(fmt::format("mean power {:.0f} W", watts / known));
  const auto hottest = std::max_element(runs.begin(), runs.end(), [](const auto& a, const auto& b) {
    return a.temperature_c.value_or(-1e9) < b.temperature_c.value_or(-1e9);
  });
  if (hottest != runs.end() && hottest->temperature_c)
    parts.push_back(fmt::format("at most {:.0f} C{}", *hottest->temperature_c,
                                runs.size() > 1 ? fmt::format(" (rank {})", hottest - runs.begin()) : ""));
  std::map<std::string, std::vector<size_t>> throttled;
  for (size_t rank = 0; rank < runs.size(); ++rank)
    if (const std::string why = throttle_text(runs[rank]); !why.empty()) throttled[why].push_back(rank);
  constexpr size_t kMostNamed = 8;
  for (const auto& [why, ranks] : throttled)
    parts.push_back(ranks.size() > kMostNamed
                        ? fmt::format("{} ranks mostly throttled by {}", ranks.size(), why)
                        : fmt::format("rank{} {} mostly throttled by {}", ranks.size() == 1 ? "" : "s",
                                      fmt::join(ranks, ", "), why));
  if (parts.empty()) return "";
  return fmt::format("{} GPU{}: {}", runs.size(), runs.size() == 1 ? "" : "s", fmt::join(parts, ", "));
}

}  // namespace ltrain
