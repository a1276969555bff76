// Progress of this process, which the heartbeat reports to the coordinator of a job.
#pragma once
#include <atomic>
#include <cstdint>

namespace ltrain {

/// Grows with each small unit of work: a launched op, a completed collective or an arrived part of one, a
/// batch, a piece of a file read or written. Constant during a wait, and in a loop without such work.
inline std::atomic<uint64_t> progress_made{0};
inline void note_progress() { progress_made.fetch_add(1, std::memory_order_relaxed); }

}  // namespace ltrain
