#include "kernels/cuda/pack_cuda.h"
#include "kernels/elementwise/scale_add.h"

namespace ltrain {
namespace cuda {
namespace {

template <class A, int N>
__global__ void scale_add_kernel(A* y, double a, const A* x, A b, const double* squares, double eps,
                                 int64_t packs) {
  if (squares) a /= sqrt(*squares) > eps ? sqrt(*squares) : eps;
  const A by = A(a);
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    auto yp = load<A, N>(y, i * N);
    if (x) {
      const auto xp = load<A, N>(x, i * N);
      for (int j = 0; j < N; ++j) yp.v[j] = by * yp.v[j] + b * xp.v[j];
    } else {
      for (int j = 0; j < N; ++j) yp.v[j] = by * yp.v[j];
    }
    store(y, i * N, yp);
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void scale_add_cuda(Stream& s, DType t, void* y, double a, const void* x, double b, const double* squares,
                    double eps, int64_t n) {
  const auto run = [&]<class A>() {
    with_pack<A>(n, {y, x}, [&]<int N>() {
      launch(s, blocks_for(n / N, kThreads), kThreads, 0, scale_add_kernel<A, N>, static_cast<A*>(y), a,
             static_cast<const A*>(x), A(b), squares, eps, n / N);
    });
  };
  if (t == DType::f64) {
    run.template operator()<double>();
  } else {
    run.template operator()<float>();
  }
}

}  // namespace ltrain
