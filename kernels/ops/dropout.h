// Dropout by counter: what is dropped is a function of (seed, layer, global sample, position, channel), so it
// is the same under every layout and needs no saved mask.
#pragma once
#include "kernels/core/host_device.h"
#include "kernels/core/kernel.h"
#include "kernels/core/rng.h"
#include "kernels/core/row_map.h"
#include "kernels/core/stream.h"

namespace ltrain {

/// One dropout of a (rows, C) tensor. p = 0 is off.
struct Dropout {
  double p = 0;
  uint64_t seed = 0;
  uint64_t stream = 0;      ///< hash of the layer's name and the place in it
  Tensor sample_index;      ///< (B) i64: global sample index of each row of the batch
  RowMap rows;              ///< sample and position of each row
  int part = 0, parts = 1;  ///< which of equal runs of the channels these are
  bool on() const { return p > 0; }
};

/// The same with raw pointers, for kernels.
struct DropoutArgs {
  uint32_t threshold = 0;  ///< 0: off
  float scale = 1;
  uint64_t seed = 0, stream = 0;
  const int64_t* sample_index = nullptr;
  RowMapArgs rows;
  int64_t part = 0, parts = 1;
};
DropoutArgs dropout_args(const Dropout& d);

/// The first Philox call of row `row`, of which `cols` channels are here. Channels of the whole row are
/// padded to a multiple of four, so that a row starts on a call of its own.
LT_HD inline uint64_t dropout_call(const DropoutArgs& d, int64_t row, int64_t cols) {
  const uint64_t sample = static_cast<uint64_t>(d.sample_index[d.rows.sample(row)]);
  return (sample * static_cast<uint64_t>(d.rows.total) + static_cast<uint64_t>(d.rows.position(row))) *
         static_cast<uint64_t>((cols * d.parts + 3) / 4);
}

/// y = x with elements dropped and the rest scaled by 1 / (1 - p); its own backward. x, y: (rows, C); y may
/// alias x.
void dropout(Stream& s, Tensor y, Tensor x, const Dropout& d);

LT_KERNEL(dropout, DType t, void* y, const void* x, int64_t rows, int64_t cols, DropoutArgs d)

}  // namespace ltrain
