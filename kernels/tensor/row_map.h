// Token of each row of an activation. Rows of a micro-batch are (sample, position) pairs. A rank may hold a
// run of the rows (sequence parallelism), or other positions than the first ones (context parallelism).
#pragma once
#include "kernels/tensor/host_device.h"
#include "kernels/tensor/tensor.h"

namespace ltrain {

/// RowMap with raw pointers, for kernels. Row r of this rank is column (r + first_row) % seq of sample (r +
/// first_row) / seq of the batch.
struct RowMapArgs {
  int64_t seq = 1, first_row = 0, total = 1;
  const int32_t* positions = nullptr;
  const int32_t* ids = nullptr;
  LT_HD int64_t sample(int64_t row) const { return (row + first_row) / seq; }
  LT_HD int64_t position(int64_t row) const {
    const int64_t column = (row + first_row) % seq;
    return positions ? positions[column] : column;
  }
  /// Position for embeddings.
  LT_HD int64_t embedded(int64_t row) const { return ids ? ids[row + first_row] : position(row); }
};

struct RowMap {
  int64_t seq = 1;        ///< tokens of a sample on this context rank
  int64_t first_row = 0;  ///< first of this rank's rows among the batch * seq rows
  int64_t total = 0;      ///< tokens of a full sample; 0: seq
  Tensor positions;       ///< (seq) i32: position of each column in its sample; undefined: 0, 1, ...
  Tensor ids;             ///< (batch * seq) i32: positions for embeddings, if documents have their own
  RowMapArgs args() const {
    return {seq, first_row, total ? total : seq,
            positions.defined() && positions.data ? positions.ptr<int32_t>() : nullptr,
            ids.defined() && ids.data ? ids.ptr<int32_t>() : nullptr};
  }
};

}  // namespace ltrain
