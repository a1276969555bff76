#include "runtime/weights/stream_tensor.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace ltrain {

constexpr int64_t kBlock = 8 << 20;  // bytes

void stream_tensor(PieceReader& from, const std::string& name, DType dtype, const Slice& slice,
                   bool transposed, const std::function<void(const void*, int64_t)>& write) {
  const int64_t size = dtype_size(dtype);
  std::vector<char> block;
  if (!transposed) {
    const int64_t most = kBlock / size;
    for (int64_t at = 0; at < slice.elements(); at += most) {
      const int64_t n = std::min(most, slice.elements() - at);
      block.resize(static_cast<size_t>(n * size));
      from.read(name, dtype, slice.range(at, at + n), block.data());
      write(block.data(), n * size);
    }
    return;
  }
  LT_CHECK(slice.global.rank == 2 && slice == Slice::whole(slice.global), "{}: {} is no matrix", name,
           to_string(slice));
  const int64_t rows = slice.global[0], columns = slice.global[1],
                most = std::max<int64_t>(1, kBlock / (rows * size));
  std::vector<char> turned;
  for (int64_t at = 0; at < columns; at += most) {
    const int64_t n = std::min(most, columns - at);
    block.resize(static_cast<size_t>(n * rows * size));
    turned.resize(block.size());
    from.read(name, dtype, Slice::box(slice.global, {0, at}, {rows, n}), block.data());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < n; ++c)
        std::memcpy(turned.data() + (c * rows + r) * size, block.data() + (r * n + c) * size,
                    static_cast<size_t>(size));
    write(turned.data(), n * rows * size);
  }
}

}  // namespace ltrain
