// Numbers that a GPU's sensors and counters show at one moment.
#pragma once
#include <optional>

namespace ltrain {

/// Absent: the driver does not give the number. Counters run since the driver was loaded.
struct GpuReading {
  std::optional<double> sm_clock_mhz, power_w, energy_j, temperature_c, memory_used_mib;
  std::optional<double> throttle_reasons;  ///< bits of nvmlClocksEventReasons, as a whole number
  std::optional<double> ecc_corrected, ecc_uncorrected;
  std::optional<double> nvlink_replays;  ///< summed over the links
  std::optional<double> pcie_replays;
};

/// Bits of throttle_reasons that lower the clock of a GPU with work.
constexpr unsigned kPowerCap = 0x4, kHardwareSlowdown = 0x8, kSoftwareThermal = 0x20, kHardwareThermal = 0x40,
                   kPowerBrake = 0x80;
constexpr unsigned kThermal = kSoftwareThermal | kHardwareThermal;

}  // namespace ltrain
