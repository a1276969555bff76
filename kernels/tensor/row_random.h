// Random numbers for the rows of an activation: a function of (seed, place, global sample, position, channel)
// alone, so that they are the same under every layout and need not be kept for the backward.
#pragma once
#include "kernels/tensor/host_device.h"
#include "kernels/tensor/rng.h"
#include "kernels/tensor/row_map.h"

namespace ltrain {

/// The same with raw pointers, for kernels.
struct RowRandomArgs {
  uint64_t seed = 0, stream = 0;
  const int64_t* sample_index = nullptr;
  RowMapArgs rows;
  int64_t part = 0, parts = 1;

  /// The first Philox call of row `row`, of which `cols` channels are here. Channels of the whole row are
  /// padded to a multiple of four, so that a row starts on a call of its own.
  LT_HD uint64_t call(int64_t row, int64_t cols) const {
    const uint64_t sample = static_cast<uint64_t>(sample_index[rows.sample(row)]);
    return (sample * static_cast<uint64_t>(rows.total) + static_cast<uint64_t>(rows.position(row))) *
           static_cast<uint64_t>((cols * parts + 3) / 4);
  }
};

struct RowRandom {
  uint64_t seed = 0;
  uint64_t stream = 0;      ///< hash of the layer's name and the place in it
  Tensor sample_index;      ///< (B) i64: global sample index of each row of the batch
  RowMap rows;              ///< sample and position of each row
  int part = 0, parts = 1;  ///< which of equal runs of the channels these are
  RowRandomArgs args() const { return {seed, stream, sample_index.ptr<int64_t>(), rows.args(), part, parts}; }
};

}  // namespace ltrain
