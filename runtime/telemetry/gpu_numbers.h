// Names of the numbers of a GPU in metrics.jsonl and for Prometheus, and their sums over time and ranks.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/gpu_reading.h"
#include "kernels/tensor/stream.h"
#include "parallel/comm/communicator.h"

namespace ltrain {

struct GpuNumber {
  std::optional<double> GpuReading::*member;
  const char* name;       ///< in metrics.jsonl, "gpu_" before it
  const char* dcgm;       ///< DCGM exporter's name
  const char* type;       ///< "gauge" or "counter" of Prometheus
  const char* help;       ///< help text of Prometheus
  double dcgm_scale = 1;  ///< DCGM exporter's unit
};
const std::array<GpuNumber, 10>& gpu_numbers();

/// Reasons of throttle_reasons that lower the clock of a GPU with work: "temperature, power cap". Empty:
/// there are none.
std::string throttle_text(const GpuReading& r);
/// Bits of throttle_reasons; 0 if unknown.
unsigned throttle_bits(const GpuReading& r);

/// Several readings of one GPU as one.
class GpuMean {
 public:
  void add(const GpuReading& r);
  int64_t readings() const { return readings_; }
  /// Mean clock and power, the highest temperature, throttle reasons of at least half of the readings, and of
  /// the rest the newest.
  GpuReading mean() const;

 private:
  struct Sum {
    double sum = 0;
    int64_t count = 0;
  };
  GpuReading newest_;
  Sum clock_, power_;
  std::optional<double> hottest_;
  std::array<int64_t, 16> reasons_{};  // readings with this bit
  int64_t readings_ = 0;
};

/// Every rank's reading, in rank order. Collective. `stream`: of the CPU.
std::vector<GpuReading> gather_readings(Communicator& group, Stream& stream, const GpuReading& mine);

/// Line for the end of a run: energy and clock of the GPUs of all ranks. `runs`: mean of each rank's run, its
/// energy since the first step; `tokens`: since then. Empty if no GPU gives a number.
std::string gpu_summary(const std::vector<GpuReading>& runs, double tokens);

}  // namespace ltrain
