#include "kernels/elementwise/dropout_row_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

/// One thread handles the channels of one Philox call: four, or fewer at the ends of this rank's part of a
/// row.
template <class T>
__global__ void dropout(T* y, const T* x, int64_t rows, int64_t cols, DropoutArgs d) {
  const int64_t begin = d.part * cols, end = begin + cols, first = begin / 4, calls = (end + 3) / 4 - first;
  for (int64_t i = grid_thread(); i < rows * calls; i += grid_stride()) {
    const int64_t row = i / calls, call = first + i % calls;
    const Philox4 r = philox(d.seed, d.stream, d.call(row, cols) + static_cast<uint64_t>(call));
    for (int64_t j = 0; j < 4; ++j)
      if (const int64_t c = call * 4 + j; c >= begin && c < end) {
        const int64_t at = row * cols + c - begin;
        put(y, at, get(x, at) * (r.v[j] >= d.threshold ? compute_t<T>(d.scale) : compute_t<T>(0)));
      }
  }
}

}  // namespace
}  // namespace cuda

void dropout_cuda(Stream& s, DType t, void* y, const void* x, int64_t rows, int64_t cols, DropoutArgs d) {
  dispatch_float(t, [&]<class T>() {
    cuda::launch(s, cuda::blocks_for(rows * (cols / 4 + 2), 256), 256, 0, cuda::dropout<T>,
                 static_cast<T*>(y), static_cast<const T*>(x), rows, cols, d);
  });
}

}  // namespace ltrain
