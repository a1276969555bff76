// Shared memory of the ranks of one group on one host: an unnamed, sealed memory file that each rank maps.
//
//   header page | rank 0: control page(s), slots, transfer slots | rank 1: ... |
//
// A rank writes only to its own block, except for `transfer_taken` and `doorbell`. Counters only grow, over
// the whole life of the group: nothing is ever reset, and a late reader is never confused.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "base/fd.h"
#include "parallel/comm/call_description.h"

namespace ltrain::shm {

inline constexpr int kMaxRanks = 128;       ///< the limit of descriptors in one message is 253
inline constexpr int kWindows = 4;          ///< slots of a rank for collectives
inline constexpr int kTransferWindows = 4;  ///< slots of a rank for sends to one other rank

struct RankControl {
  // Written by the rank, read by all.
  alignas(128) std::atomic<uint64_t> entered;  ///< number of the last entered collective
  std::atomic<uint64_t> posted;                ///< slots filled
  std::atomic<uint64_t> reduced;               ///< slots with this rank's sum
  std::atomic<uint64_t> consumed;              ///< slots that this rank has finished reading
  std::atomic<uint64_t> gave_up;               ///< 0, or number of a collective << 16 | (culprit + 2)
  std::atomic<uint32_t> left;                  ///< 1: the rank has destroyed its communicator
  struct alignas(64) PaddedNote {
    Note note;
  } notes[2];  ///< notes of collectives, by the parity of their number

  // The message being sent, if any.
  alignas(128) std::atomic<uint64_t> offer;  ///< number of messages << 16 | receiver
  std::atomic<uint64_t> transfer_posted;     ///< transfer slots filled
  Note transfer_note;
  alignas(128) std::atomic<uint64_t> transfer_taken;  ///< transfer slots taken; written by the receiver

  // Sleep and wake-up.
  alignas(128) std::atomic<uint32_t> waits_for;  ///< kNobody, a rank + 1, or kAnyone
  alignas(128) std::atomic<uint32_t> doorbell;   ///< futex; others increment it
};
inline constexpr uint32_t kNobody = 0, kAnyone = ~0u;
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

/// Sizes in bytes and offsets: equal on all ranks, a function of the group's size and options.
struct Layout {
  int ranks = 0;
  int64_t slot_bytes = 0, transfer_bytes = 0;  ///< multiples of 4096

  int64_t control_bytes() const;
  int64_t rank_bytes() const {
    return control_bytes() + kWindows * slot_bytes + kTransferWindows * transfer_bytes;
  }
  int64_t total_bytes() const { return 4096 + ranks * rank_bytes(); }
};

/// Reason why this process cannot share memory (no memfd, no unix sockets); empty if it can.
std::string unavailable();

/// An empty segment of fixed size, sealed.
Fd create_memory(const Layout& layout);

class Segment {
 public:
  /// Maps `memory`, which another rank may have sent. Throws Error, with `whence` in the text, unless it is a
  /// sealed memory file of exactly this layout.
  Segment(const Fd& memory, const Layout& layout, const std::string& whence);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const Layout& layout() const { return layout_; }
  RankControl& control(int rank) const { return *reinterpret_cast<RankControl*>(block(rank)); }
  /// all_to_all: elements that `rank` sends to each rank, then elements that it expects from each.
  int64_t* pair_table(int rank, uint64_t sequence) const {
    return reinterpret_cast<int64_t*>(block(rank) + sizeof(RankControl)) +
           static_cast<int64_t>(sequence % 2) * 2 * layout_.ranks;
  }
  /// The n-th slot that `rank` fills since the group began; slots are used cyclically.
  char* slot(int rank, uint64_t n) const {
    return block(rank) + layout_.control_bytes() + static_cast<int64_t>(n % kWindows) * layout_.slot_bytes;
  }
  char* transfer_slot(int rank, uint64_t n) const {
    return block(rank) + layout_.control_bytes() + kWindows * layout_.slot_bytes +
           static_cast<int64_t>(n % kTransferWindows) * layout_.transfer_bytes;
  }

 private:
  char* block(int rank) const { return base_ + 4096 + rank * layout_.rank_bytes(); }
  Layout layout_;
  char* base_ = nullptr;
};

}  // namespace ltrain::shm
