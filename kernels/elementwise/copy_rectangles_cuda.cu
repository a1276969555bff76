#include "kernels/cuda/kernel_cuda.h"
#include "kernels/elementwise/copy_rectangles.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kMostParts = 16;  // parts of one launch, passed as a kernel argument

struct Parts {
  CopyRectangle part[kMostParts];
};

template <class T, class F>
__global__ void copy(T* out, const F* in, int64_t out_width, int64_t in_width, Parts parts) {
  const CopyRectangle& p = parts.part[blockIdx.y];
  for (int64_t i = grid_thread(); i < p.rows * p.cols; i += grid_stride()) {
    const int64_t r = i / p.cols, c = i % p.cols;
    put(out, (p.to_row + r) * out_width + p.to_col + c,
        static_cast<compute_t<T>>(get(in, (p.from_row + r) * in_width + p.from_col + c)));
  }
}

}  // namespace
}  // namespace cuda

void copy_rectangles_cuda(Stream& s, DType to, DType from, void* out, const void* in, int64_t out_width,
                          int64_t in_width, const CopyRectangle* parts, int64_t count) {
  dispatch_float(from, [&]<class F>() {
    dispatch_float(to, [&]<class T>() {
      for (int64_t first = 0; first < count; first += cuda::kMostParts) {
        cuda::Parts some;
        int64_t most = 0;
        const int64_t n = std::min<int64_t>(cuda::kMostParts, count - first);
        for (int64_t i = 0; i < n; ++i) {
          some.part[i] = parts[first + i];
          most = std::max(most, some.part[i].rows * some.part[i].cols);
        }
        if (most == 0) continue;
        dim3 grid = cuda::blocks_for(most, 256, 4096);
        grid.y = static_cast<unsigned>(n);
        cuda::launch(s, grid, 256, 0, cuda::copy<T, F>, static_cast<T*>(out), static_cast<const F*>(in),
                     out_width, in_width, some);
      }
    });
  });
}

}  // namespace ltrain
