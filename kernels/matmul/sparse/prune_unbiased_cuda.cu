#include "kernels/cuda/kernel_cuda.h"
#include "kernels/matmul/sparse/prune_pair.h"
#include "kernels/matmul/sparse/prune_unbiased.h"
#include "kernels/tensor/rng.h"

namespace ltrain {
namespace cuda {
namespace {

/// One thread handles the channels of one Philox call in two rows: four, or fewer at the ends of the range.
template <class T>
__global__ void prune_unbiased(T* out, const T* dy, int64_t pairs, int64_t cols, RowRandomArgs random,
                               ColumnRange range) {
  using A = compute_t<T>;
  const int64_t begin = random.part * range.count, end = begin + range.count, first = begin / 4,
                calls = (end + 3) / 4 - first;
  for (int64_t i = grid_thread(); i < pairs * calls; i += grid_stride()) {
    const int64_t row = i / calls * 2, call = first + i % calls;
    const Philox4 r =
        philox(random.seed, random.stream, random.call(row, range.count) + static_cast<uint64_t>(call));
    for (int64_t j = 0; j < 4; ++j)
      if (const int64_t c = call * 4 + j; c >= begin && c < end) {
        const int64_t at = row * cols + range.first + c - begin;
        A a = get(dy, at), b = get(dy, at + cols);
        prune_pair(a, b, A(to_uniform(r.v[j])));
        put(out, at, a);
        put(out, at + cols, b);
      }
  }
}

}  // namespace
}  // namespace cuda

void prune_unbiased_cuda(Stream& s, DType t, void* out, const void* dy, int64_t rows, int64_t cols,
                         RowRandomArgs random, ColumnRange range) {
  dispatch_float(t, [&]<class T>() {
    cuda::launch(s, cuda::blocks_for(rows / 2 * (range.count / 4 + 2), 256), 256, 0, cuda::prune_unbiased<T>,
                 static_cast<T*>(out), static_cast<const T*>(dy), rows / 2, cols, random, range);
  });
}

}  // namespace ltrain
