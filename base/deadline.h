// Points in time of the steady clock, and the time until then.
#pragma once
#include <chrono>

namespace ltrain {

using SteadyTime = std::chrono::steady_clock::time_point;
inline SteadyTime steady_now() { return std::chrono::steady_clock::now(); }
inline SteadyTime after(double seconds, SteadyTime from = steady_now()) {
  return from + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                    std::chrono::duration<double>(seconds));
}
inline double seconds_between(SteadyTime a, SteadyTime b) {
  return std::chrono::duration<double>(b - a).count();
}
/// Timeout for poll(): remaining milliseconds, rounded up, not negative.
inline int poll_timeout(SteadyTime deadline) {
  const double left = seconds_between(steady_now(), deadline);
  if (left <= 0) return 0;
  return left > 1e6 ? 1000000000 : static_cast<int>(left * 1000) + 1;
}

}  // namespace ltrain
