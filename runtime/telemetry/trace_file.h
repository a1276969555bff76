// Traces of planned or measured steps for chrome://tracing and Perfetto.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ltrain {

/// One op on one stream.
struct TraceSlice {
  std::string_view name, category, layer, stream;
  double start = 0, seconds = 0;  ///< seconds of any one clock
  double flops = 0, bytes = 0, wire_bytes = 0;
};

/// Trace in the Trace Event Format. A rank is a process and a stream is a thread of it, ordered by their
/// first op. Times are microseconds since `origin`. `process`: "rank 3 (planned)".
std::string chrome_trace(const std::string& process, int rank, int ranks, double origin,
                         const std::vector<TraceSlice>& slices);

}  // namespace ltrain
