// Positions of a sample's rows in its sequence. Without context parallelism a rank has all of them, in order.
// With it, a rank has one run of consecutive positions, or two. Two runs are the zig-zag layout: a chunk from
// the front and its mirror image from the back, so that causal attention costs every rank the same.
#pragma once
#include <cstdint>
#include "kernels/tensor/host_device.h"

namespace ltrain {

struct Positions {
  int64_t rows = 1;               ///< rows of a sample on this rank
  int64_t split = 1;              ///< rows of the first run, 1 to rows
  int64_t first = 0, second = 0;  ///< position of row 0, and of row `split` if there is a second run
  int64_t seq = 1;                ///< length of the full sequence

  Positions() = default;
  /// All positions of a sequence. Not explicit, since a plain length is the usual case.
  Positions(int64_t whole) : rows(whole), split(whole), seq(whole) {}
  /// One run of consecutive positions.
  static Positions run(int64_t first, int64_t rows, int64_t seq) {
    Positions p(rows);
    p.first = first, p.seq = seq;
    return p;
  }
  /// Two runs of `each` rows, in ascending order.
  static Positions two_runs(int64_t first, int64_t second, int64_t each, int64_t seq) {
    Positions p(2 * each);
    p.split = each, p.first = first, p.second = second, p.seq = seq;
    return p;
  }

  bool whole() const { return rows == seq; }
  LT_HD int64_t at(int64_t row) const { return row < split ? first + row : second + row - split; }
  /// The row of a position; -1 if this rank does not have it.
  int64_t row_of(int64_t position) const {
    if (position >= first && position < first + split) return position - first;
    if (position >= second && position < second + rows - split) return split + position - second;
    return -1;
  }
};

}  // namespace ltrain
