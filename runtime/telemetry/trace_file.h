// Traces of steps, planned or measured, for chrome://tracing and Perfetto.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ltrain {

/// One piece of work on one stream.
struct TraceSlice {
  std::string_view name, category, layer, stream;
  double start = 0, seconds = 0;  ///< of any one clock
  double flops = 0, bytes = 0, wire_bytes = 0;
};

/// The Trace Event Format: a rank is a process, a stream is a thread of it, in the order of their first work;
/// times are microseconds since `origin`. `process`: "rank 3 (planned)".
std::string chrome_trace(const std::string& process, int rank, int ranks, double origin,
                         const std::vector<TraceSlice>& slices);

}  // namespace ltrain
