// Bytes that one rank sends in a collective: one formula for counting, for the plan and for its prices.
#pragma once
#include <algorithm>
#include <cstdint>

namespace ltrain {

enum class CollectiveOp : uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  send,
  recv,
  send_recv,
  barrier,
  reduce
};
inline constexpr int kCollectiveOpCount = 10;

constexpr const char* collective_name(CollectiveOp op) {
  constexpr const char* names[kCollectiveOpCount] = {
      "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
      "send",       "recv",       "send_recv",      "barrier",    "reduce"};
  return names[static_cast<int>(op)];
}

/// Rank r's part of `elements` divided into n parts: [begin, begin + count). All parts have ceil(elements /
/// n) elements except the last ones, which may be shorter or empty.
struct PartRange {
  int64_t begin = 0, count = 0;
};
constexpr PartRange part_of(int64_t elements, int n, int r) {
  const int64_t part = (elements + n - 1) / n;
  const int64_t begin = std::min(elements, part * r);
  return {begin, std::min(part, elements - begin)};
}

/// Bytes that `rank` of `n` sends. `bytes` is the size of
///   all_reduce: the tensor (full elements of `element_size`); reduce-scatter phase plus all-gather phase;
///   all_gather: the gathered output;  reduce_scatter: the full input;
///   all_to_all: the input;
///   broadcast: the tensor (the root sends it n-1 times);  reduce: the tensor (all but the root send it);
///   send, send_recv: the sent tensor;  recv, barrier: 0.
/// `own_bytes` (all_to_all only): the part that stays on the rank; -1: one n-th.
constexpr int64_t collective_wire_bytes(CollectiveOp op, int64_t bytes, int n, int rank,
                                        int64_t element_size = 1, int root = 0, int64_t own_bytes = -1) {
  if (n <= 1) return 0;
  switch (op) {
    case CollectiveOp::all_reduce: {
      const int64_t own = part_of(bytes / element_size, n, rank).count * element_size;
      return (bytes - own) + own * (n - 1);
    }
    case CollectiveOp::all_gather:
    case CollectiveOp::reduce_scatter:
      return bytes / n * (n - 1);
    case CollectiveOp::all_to_all:
      return bytes - (own_bytes >= 0 ? own_bytes : bytes / n);
    case CollectiveOp::broadcast:
      return rank == root ? bytes * (n - 1) : 0;
    case CollectiveOp::reduce:
      return rank == root ? 0 : bytes;
    case CollectiveOp::send:
    case CollectiveOp::send_recv:
      return bytes;
    case CollectiveOp::recv:
    case CollectiveOp::barrier:
      return 0;
  }
  return 0;
}

}  // namespace ltrain
