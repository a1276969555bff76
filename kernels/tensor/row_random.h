// Random numbers for the rows of an activation. They are a function of (seed, stream, global sample,
// position, channel) alone. They are therefore the same under every layout and need not be saved for
// backward.
#pragma once
#include "kernels/tensor/host_device.h"
#include "kernels/tensor/rng.h"
#include "kernels/tensor/row_map.h"

namespace ltrain {

/// RowRandom with raw pointers, for kernels.
struct RowRandomArgs {
  uint64_t seed = 0, stream = 0;
  const int64_t* sample_index = nullptr;
  RowMapArgs rows;
  int64_t part = 0, parts = 1;

  /// First Philox call of row `row`, with `cols` channels on this rank. The channels of a full row are padded
  /// to a multiple of four, so that each row starts with its own call.
  LT_HD uint64_t call(int64_t row, int64_t cols) const {
    const uint64_t sample = static_cast<uint64_t>(sample_index[rows.sample(row)]);
    return (sample * static_cast<uint64_t>(rows.total) + static_cast<uint64_t>(rows.position(row))) *
           static_cast<uint64_t>((cols * parts + 3) / 4);
  }
};

struct RowRandom {
  uint64_t seed = 0;
  uint64_t stream = 0;      ///< hash of the layer's name and of the use in it
  Tensor sample_index;      ///< (B) i64: global sample index of each row of the batch
  RowMap rows;              ///< sample and position of each row
  int part = 0, parts = 1;  ///< index of this rank's run among equal runs of the channels
  RowRandomArgs args() const { return {seed, stream, sample_index.ptr<int64_t>(), rows.args(), part, parts}; }
};

}  // namespace ltrain
