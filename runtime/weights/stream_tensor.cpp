#include "runtime/weights/stream_tensor.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <vector>

namespace ltrain {

constexpr int64_t kBlock = 4 << 20;  // bytes

namespace {

/// Streams elements in order. One block is read on another thread while the previous one is written.
void stream_rows(const ReadSlice& from, const std::string& name, DType dtype, const Slice& slice,
                 const WriteBytes& write) {
  const int64_t size = dtype_size(dtype), most = kBlock / size, all = slice.elements();
  std::vector<char> blocks[2];
  const auto read = [&](int64_t at, std::vector<char>& to) {
    const int64_t n = std::min(most, all - at);
    to.resize(static_cast<size_t>(n * size));
    from(name, dtype, slice.range(at, at + n), to.data());
  };
  if (all == 0) return;
  read(0, blocks[0]);
  for (int64_t at = 0, i = 0; at < all; at += most, i ^= 1) {
    std::future<void> next;
    if (at + most < all)
      next = std::async(std::launch::async, [&, at, i] { read(at + most, blocks[i ^ 1]); });
    write(blocks[i].data(), static_cast<int64_t>(blocks[i].size()));
    if (next.valid()) next.get();
  }
}

}  // namespace

void stream_tensor(const ReadSlice& from, const std::string& name, DType dtype, const Slice& slice,
                   bool transposed, const WriteBytes& write) {
  if (!transposed) return stream_rows(from, name, dtype, slice, write);
  const int64_t size = dtype_size(dtype);
  std::vector<char> block;
  LT_CHECK(slice.global.rank == 2 && slice == Slice::whole(slice.global),
           "expected a full matrix of {}, got {}", name, to_string(slice));
  const int64_t rows = slice.global[0], columns = slice.global[1],
                most = std::max<int64_t>(1, kBlock / (rows * size));
  std::vector<char> turned;
  for (int64_t at = 0; at < columns; at += most) {
    const int64_t n = std::min(most, columns - at);
    block.resize(static_cast<size_t>(n * rows * size));
    turned.resize(block.size());
    from(name, dtype, Slice::box(slice.global, {0, at}, {rows, n}), block.data());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < n; ++c)
        std::memcpy(turned.data() + (c * rows + r) * size, block.data() + (r * n + c) * size,
                    static_cast<size_t>(size));
    write(turned.data(), n * rows * size);
  }
}

void stream_stack(const ReadSlice& from, const std::string& name, DType dtype, const Shape& shape,
                  bool transposed, const WriteBytes& write) {
  const int64_t size = dtype_size(dtype), columns = shape[shape.rank - 1];
  const int64_t matrices = shape.rank == (transposed ? 4 : 3) ? 2 : 1,
                rows = transposed ? shape[shape.rank - 2] : 1;
  const int64_t most = std::max<int64_t>(1, kBlock / (matrices * rows * size));
  std::vector<char> block, woven;
  for (int64_t e = 0; e < shape[0]; ++e)
    for (int64_t at = 0; at < columns; at += most) {
      const int64_t n = std::min(most, columns - at);
      Shape offset = shape, extent = shape;
      for (int d = 0; d < shape.rank; ++d) offset.dims[d] = 0;
      offset.dims[0] = e, extent.dims[0] = 1;
      offset.dims[shape.rank - 1] = at, extent.dims[shape.rank - 1] = n;
      block.resize(static_cast<size_t>(matrices * rows * n * size));
      woven.resize(block.size());
      from(name, dtype, Slice::box(shape, offset, extent), block.data());
      for (int64_t m = 0; m < matrices; ++m)
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < n; ++c)
            std::memcpy(woven.data() + ((c * rows + r) * matrices + m) * size,
                        block.data() + ((m * rows + r) * n + c) * size, static_cast<size_t>(size));
      write(woven.data(), static_cast<int64_t>(woven.size()));
    }
}

}  // namespace ltrain
