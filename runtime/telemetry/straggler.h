// A rank that holds up the others, for the log, metrics.jsonl and the Prometheus file.
#pragma once
#include <string>

#include "kernels/cuda/gpu_reading.h"

namespace ltrain {

struct Straggler {
  int rank = 0;
  std::string host;
  /// "data": waits for its data. "stalled": its process does not run. "compute": its own work takes longer;
  /// on a GPU with a lower clock "temperature", "power" or "clock", by the reason that the driver gives.
  std::string reason;
  double own_ms = 0, median_ms = 0;  ///< a step: time of its own, and the median of all ranks
  double reason_ms = 0;              ///< a step: time that the reason takes
  GpuReading gpu;                    ///< means of the rank over the interval
  double median_clock_mhz = 0;       ///< SM clock over all ranks; 0: unknown
};

}  // namespace ltrain
