#include "kernels/cuda/kernel_cuda.h"
#include "kernels/moe/jitter.h"
#include "kernels/tensor/rng.h"

namespace ltrain {
namespace cuda {
namespace {

/// One thread handles the channels of one Philox call.
template <class T>
__global__ void jitter(T* y, const T* x, int64_t rows, int64_t cols, RowRandomArgs random, double eps) {
  using A = compute_t<T>;
  const int64_t calls = (cols + 3) / 4;
  for (int64_t i = grid_thread(); i < rows * calls; i += grid_stride()) {
    const int64_t row = i / calls, first = i % calls * 4;
    const Philox4 r =
        philox(random.seed, random.stream, random.call(row, cols) + static_cast<uint64_t>(first / 4));
    for (int64_t c = first; c < first + 4 && c < cols; ++c)
      put(y, row * cols + c, get(x, row * cols + c) * (A(1) + A(eps) * (2 * A(to_uniform(r.v[c & 3])) - 1)));
  }
}

}  // namespace
}  // namespace cuda

void jitter_cuda(Stream& s, DType t, void* y, const void* x, int64_t rows, int64_t cols, RowRandomArgs random,
                 double eps) {
  dispatch_float(t, [&]<class T>() {
    cuda::launch(s, cuda::blocks_for(rows * ((cols + 3) / 4), 256), 256, 0, cuda::jitter<T>,
                 static_cast<T*>(y), static_cast<const T*>(x), rows, cols, random, eps);
  });
}

}  // namespace ltrain
