// Waits for other ranks of a shared segment, and wake-ups.
//
// A wait spins for a moment and then sleeps on the rank's own doorbell, after announcing the rank that it
// waits for. A rank that changes a counter rings only the ranks that wait for it. Both sides use sequentially
// consistent operations: either the sleeper sees the new counter, or the other sees the sleeper. A sleeper
// wakes periodically to check that the awaited process is alive.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/progress.h"
#include "parallel/shm/segment.h"

namespace ltrain::shm {

/// Ranks that a wait waits for: none, one, or either of two.
struct Blocked {
  int a = -1, b = -1;
  bool nobody() const { return a < 0; }
  bool operator==(const Blocked&) const = default;
};

/// Reason for the early end of a wait.
struct Lost {
  int rank = -1;     ///< awaited rank; -1: the wait succeeded
  int culprit = -1;  ///< rank that `rank` had lost, if it gave up for that reason
  enum class How { timed_out, died, left, gave_up } how = How::timed_out;
};

class Signals {
 public:
  Signals(const Segment& segment, int rank, Fd own_life, std::vector<Fd> others_life, double spin_seconds);
  ~Signals();  ///< tells the others that this rank has left

  /// Sets a counter of this rank, after all earlier writes, and wakes ranks that wait for this rank.
  void publish(std::atomic<uint64_t>& counter, uint64_t value) {
    note_progress();
    counter.store(value, std::memory_order_seq_cst);
    for (int r = 0; r < segment_.layout().ranks; ++r) ring_if_waiting(r);
  }
  /// publish() for a counter that only `peer` waits for.
  void publish_to(int peer, std::atomic<uint64_t>& counter, uint64_t value) {
    note_progress();
    counter.store(value, std::memory_order_seq_cst);
    ring_if_waiting(peer);
  }
  /// Announces that this rank stops at collective `sequence`, because of `culprit` (-1: none).
  void give_up(uint64_t sequence, int culprit);
  /// Rank and culprit if another rank gave up in collective `sequence` or before.
  Lost gave_up(uint64_t sequence) const;

  /// Waits until `blocked()` names no rank. It must read counters with sequentially consistent loads.
  template <class F>
  Lost wait(F&& blocked, double timeout_seconds) {
    const Blocked on = spin(blocked);
    if (on.nobody()) return {};
    return sleep(std::ref(blocked), timeout_seconds);
  }

 private:
  template <class F>
  Blocked spin(F& blocked) const {
    Blocked on = blocked();
    if (on.nobody()) return on;
    const uint64_t end = ticks() + spin_ticks_;
    do {
      for (int i = 0; i < 4; ++i) pause();
      on = blocked();
    } while (!on.nobody() && ticks() < end);
    return on;
  }
  Lost sleep(const std::function<Blocked()>& blocked, double timeout_seconds);
  Lost save_policy(const Blocked& on, bool look_for_dead);
  bool dead(int rank);
  void ring_if_waiting(int r) {
    if (r == rank_) return;
    const uint32_t on = segment_.control(r).waits_for.load(std::memory_order_seq_cst);
    if (on == static_cast<uint32_t>(rank_) + 1 || on == kAnyone) ring(r);
  }
  void ring(int r);
  static uint64_t ticks();  ///< nanoseconds
  static void pause();

  const Segment& segment_;
  const int rank_;
  Fd own_life_;
  std::vector<Fd> others_life_;
  const uint64_t spin_ticks_;
};

}  // namespace ltrain::shm
