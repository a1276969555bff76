// Notes that ranks exchange about a call before its data, and the message slots that separate calls.
#pragma once
#include <algorithm>
#include <cstdint>

#include "parallel/comm/communicator.h"

namespace ltrain {

/// Description of a rank's next call, sent to every other rank before the data. The layout is the same
/// everywhere: ranks of one job run one binary.
struct Note {
  uint64_t sequence = 0;
  int64_t elements = 0;
  // all_to_all: elements from the sender to the reader of the note; send: all elements
  int64_t pair_elements = 0;
  int32_t peer = -1;
  uint8_t op = 0, dtype = 0, reduce = 0, unused = 0;
  uint64_t unused2 = 0;
};
static_assert(sizeof(Note) == 40);

inline Note make_note(const CollectiveInfo& i) {
  Note n;
  n.sequence = i.sequence, n.elements = i.elements,
  n.peer = i.op == CollectiveOp::broadcast || i.op == CollectiveOp::reduce ? i.peer : -1;
  n.op = static_cast<uint8_t>(i.op), n.dtype = static_cast<uint8_t>(i.dtype),
  n.reduce = static_cast<uint8_t>(i.reduce);
  return n;
}

inline CollectiveInfo read_note(const Note& n) {
  CollectiveInfo i;
  i.op = static_cast<CollectiveOp>(std::min<int>(n.op, kCollectiveOpCount - 1));
  i.sequence = n.sequence, i.elements = n.elements, i.peer = n.peer;
  i.dtype = static_cast<DType>(std::min<int>(n.dtype, static_cast<int>(DType::u32)));
  i.reduce = static_cast<ReduceOp>(std::min<int>(n.reduce, 2));
  return i;
}

inline uint64_t mix(uint64_t h, uint64_t v) {  // splitmix64 of a running hash
  h += v + 0x9e3779b97f4a7c15ull;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
  return h ^ (h >> 31);
}

// Message slots. The slot of data is a hash of the call's description: ranks that disagree never write into
// each other's tensors.
inline constexpr uint64_t kNoteSlot = 1, kTransferNoteSlot = 2;
inline uint64_t data_slot(const CollectiveInfo& i, int64_t pair_bytes) {
  uint64_t h = mix(mix(0, i.sequence), static_cast<uint64_t>(i.elements));
  h = mix(h, static_cast<uint64_t>(i.op) | static_cast<uint64_t>(i.dtype) << 8 |
                 static_cast<uint64_t>(i.reduce) << 16);
  return (mix(h, static_cast<uint64_t>(pair_bytes)) | (1ull << 63)) &
         ~1ull;  // even: first phase, odd: second
}

}  // namespace ltrain
