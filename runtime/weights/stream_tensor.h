// Streaming of a tensor from its source to its target through a buffer of some MiB.
#pragma once
#include <functional>
#include <string>

#include "kernels/tensor/dtype.h"
#include "parallel/mesh/sharding.h"

namespace ltrain {

using WriteBytes = std::function<void(const void*, int64_t)>;
/// Reads the elements of a slice of a tensor as `dtype`, in order. Calls come from one thread at a time.
using ReadSlice = std::function<void(const std::string& name, DType dtype, const Slice& slice, void* to)>;
/// PieceReader::read, or that of another class.
template <class Reader>
ReadSlice reads_of(Reader& reader) {
  return [&reader](const std::string& name, DType dtype, const Slice& slice, void* to) {
    reader.read(name, dtype, slice, to);
  };
}

/// Calls write(data, bytes) with the elements of the slice as `dtype`, in order. `transposed`: the slice is a
/// full matrix and is written column by column.
void stream_tensor(const ReadSlice& from, const std::string& name, DType dtype, const Slice& slice,
                   bool transposed, const WriteBytes& write);
/// Like stream_tensor, for a full tensor of `shape` in the order of TensorName::stacked.
void stream_stack(const ReadSlice& from, const std::string& name, DType dtype, const Shape& shape,
                  bool transposed, const WriteBytes& write);

}  // namespace ltrain
