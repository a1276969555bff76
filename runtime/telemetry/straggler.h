// A rank that holds up the others, for the log, metrics.jsonl and the Prometheus file.
#pragma once
#include <string>

namespace ltrain {

struct Straggler {
  int rank = 0;
  std::string host;
  /// "data": waits for its data. "stalled": its process does not run. "compute": its own work takes longer.
  std::string reason;
  double own_ms = 0, median_ms = 0;  ///< a step: time of its own, and the median of all ranks
  double reason_ms = 0;              ///< a step: time that the reason takes
};

}  // namespace ltrain
