#include "parallel/comm/flight_ring.h"

#include <chrono>

namespace ltrain {
namespace {

int64_t unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void FlightRing::enter(const FlightRecord* group, uint64_t number, const CollectiveInfo& info) {
  const int64_t now = unix_ns();
  std::lock_guard lock(mutex_);
  ring_[count_++ % kCalls] = {group, number, info, now, 0};
}

void FlightRing::complete(const FlightRecord* group, uint64_t number) {
  const int64_t now = unix_ns();
  std::lock_guard lock(mutex_);
  // Calls of blocking groups end in the order in which they began, so the search is short. Groups of GPUs
  // have at most as many open calls as a step enqueues.
  for (uint64_t i = count_; i > 0 && count_ - i < kCalls; --i) {
    FlightCall& call = ring_[(i - 1) % kCalls];
    if (call.group != group || call.number != number) continue;
    call.end_ns = now;
    return;
  }
}

std::vector<FlightCall> FlightRing::calls() const {
  std::lock_guard lock(mutex_);
  std::vector<FlightCall> out;
  for (uint64_t i = count_ > kCalls ? count_ - kCalls : 0; i < count_; ++i) out.push_back(ring_[i % kCalls]);
  return out;
}

FlightRing& flight_ring() {
  static FlightRing ring;
  return ring;
}

}  // namespace ltrain
