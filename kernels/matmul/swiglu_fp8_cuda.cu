#include "kernels/elementwise/swiglu_cuda.h"
#include "kernels/matmul/round_fp8_cuda.h"
#include "kernels/matmul/swiglu_fp8.h"

namespace ltrain {
namespace cuda {
namespace {

/// A block handles a run of packs of rows (RowGrid); rows of gate_up are twice as long as rows of the codes.
/// With `amax` it keeps the largest magnitude of its results.
template <class T, int N>
__global__ void swiglu_forward_fp8(uint8_t* codes, const T* gate_up, int64_t rows, int64_t row_packs,
                                   const float* step, float* amax) {
  using A = compute_t<T>;
  const int64_t cols = row_packs * N, col = row_pack() * N;
  const float inverse = 1.0f / *step;
  uint32_t most = 0;
  if (col < cols)
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
      A g[N], u[N];
      load_values<N>(g, gate_up, 2 * row * cols + col);
      load_values<N>(u, gate_up, (2 * row + 1) * cols + col);
      for (int j = 0; j < N; ++j) g[j] = Swiglu<T>(g[j], u[j]).value();
      store_rounded<T, N>(codes, row * cols + col, g, inverse, most);
    }
  if (amax) keep_largest(amax, most, shared_memory<uint32_t>());
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void swiglu_forward_fp8_cuda(Stream& s, DType t, void* codes, const float* step, float* amax,
                             const void* gate_up, int64_t rows, int64_t cols) {
  if (rows * cols == 0) return;
  dispatch_float(t, [&]<class T>() {
    const auto run = [&]<int N>() {
      RowGrid g(rows, cols / N);
      g.grid.x = static_cast<unsigned>(std::min<int64_t>(rows, std::max<int64_t>(1, kMaxBlocks / g.grid.y)));
      launch(s, g.grid, g.threads, kWarp * 4, cuda::swiglu_forward_fp8<T, N>, static_cast<uint8_t*>(codes),
             static_cast<const T*>(gate_up), rows, cols / N, step, amax);
    };
    constexpr int kCodes = 16;  // codes in 16 bytes
    if (cols % kCodes == 0 && aligned({codes, gate_up}))
      run.template operator()<kCodes>();
    else
      run.template operator()<1>();
  });
}

}  // namespace ltrain
