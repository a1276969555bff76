// Streaming of a tensor from its source to its target through a buffer of some MiB.
#pragma once
#include <functional>
#include <string>

#include "runtime/checkpoint/piece_reader.h"

namespace ltrain {

using WriteBytes = std::function<void(const void*, int64_t)>;

/// Calls write(data, bytes) with the elements of the slice as `dtype`, in order. `transposed`: the slice is a
/// full matrix and is written column by column.
void stream_tensor(PieceReader& from, const std::string& name, DType dtype, const Slice& slice,
                   bool transposed, const WriteBytes& write);
/// Like stream_tensor, for a full tensor of `shape` in the order of TensorName::stacked.
void stream_stack(PieceReader& from, const std::string& name, DType dtype, const Shape& shape,
                  bool transposed, const WriteBytes& write);

}  // namespace ltrain
