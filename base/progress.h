// Whether this process gets anything done: what the heartbeat tells the coordinator of a job.
#pragma once
#include <atomic>
#include <cstdint>

namespace ltrain {

/// Grows with everything that is done, however little: an op that is launched, a collective that completes or
/// a part of one that arrives, a batch, a piece of a file that is read or written. It stands still in a wait
/// and in a loop that does none of these.
inline std::atomic<uint64_t> progress_made{0};
inline void note_progress() { progress_made.fetch_add(1, std::memory_order_relaxed); }

}  // namespace ltrain
