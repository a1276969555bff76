// The last calls of this process on all its groups, for a report after a hang. Fixed memory; always on.
#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "parallel/comm/communicator.h"

namespace ltrain {

/// One call. Times are nanoseconds of Unix time.
struct FlightCall {
  const FlightRecord* group = nullptr;  ///< identity only: the group may be gone
  uint64_t number = 0;                  ///< count of the group's calls, from 1
  CollectiveInfo info;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;  ///< 0: not completed
};

/// Ring of calls. FlightRecord feeds it. Safe from any thread; no call allocates but calls().
class FlightRing {
 public:
  static constexpr size_t kCalls = 1024;

  void enter(const FlightRecord* group, uint64_t number, const CollectiveInfo& info);
  /// Ends a call; nothing happens if the ring has overwritten it.
  void complete(const FlightRecord* group, uint64_t number);
  std::vector<FlightCall> calls() const;  ///< oldest first

 private:
  mutable std::mutex mutex_;
  std::array<FlightCall, kCalls> ring_;
  uint64_t count_ = 0;
};

/// Ring of this process.
FlightRing& flight_ring();

}  // namespace ltrain
