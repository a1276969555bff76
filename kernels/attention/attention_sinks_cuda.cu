#include "kernels/attention/attention_sinks.h"
#include "kernels/cuda/column_sums_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

/// One warp for each (row, head).
template <class T>
__global__ void apply_sinks(T* out, compute_t<T>* lse, const T* sinks, int64_t pairs, SinkShape p) {
  using A = compute_t<T>;
  const int lane = threadIdx.x % kWarp;
  for (int64_t n = grid_thread() / kWarp; n < pairs; n += grid_stride() / kWarp) {
    const int64_t row = n / p.heads, h = n % p.heads,
                  at = (row / p.rows * p.heads + h) * p.rows + row % p.rows;
    const A sum = lse[at], over = get(sinks, h) - sum;
    const A low = exp(-fabs(over));  // ratio of the smaller of both to the larger
    const A keys = over > 0 ? low / (1 + low) : 1 / (1 + low);
    for (int64_t c = lane; c < p.head_dim; c += kWarp) {
      const int64_t i = n * p.head_dim + c;
      put(out, i, get(out, i) * keys);
    }
    __syncwarp();  // every lane has read lse before lane 0 writes it
    if (lane == 0) lse[at] = sum + (over > 0 ? over : A(0)) + log1p(low);
  }
}

/// Term of a row in the gradient of a head's sink.
template <class T>
struct SinkTerm {
  const T *dout, *out, *sinks;
  const compute_t<T>* lse;
  SinkShape p;
  __device__ compute_t<T> operator()(int64_t row, int64_t h) const {
    const int64_t first = (row * p.heads + h) * p.head_dim;
    compute_t<T> dot = 0;
    for (int64_t c = 0; c < p.head_dim; ++c) dot += get(dout, first + c) * get(out, first + c);
    return -exp(get(sinks, h) - lse[(row / p.rows * p.heads + h) * p.rows + row % p.rows]) * dot;
  }
};

}  // namespace
}  // namespace cuda

using namespace cuda;

void attention_sinks_forward_cuda(Stream& s, DType t, void* out, void* lse, const void* sinks, SinkShape p) {
  dispatch_float(t, [&]<class T>() {
    const int64_t pairs = p.batch * p.rows * p.heads;
    launch(s, blocks_for(pairs * kWarp, 256), 256, 0, cuda::apply_sinks<T>, static_cast<T*>(out),
           static_cast<compute_t<T>*>(lse), static_cast<const T*>(sinks), pairs, p);
  });
}

void attention_sinks_backward_cuda(Stream& s, DType t, void* dsinks, const void* dout, const void* out,
                                   const void* lse, const void* sinks, SinkShape p) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    column_sums(s, static_cast<A*>(dsinks),
                cuda::SinkTerm<T>{static_cast<const T*>(dout), static_cast<const T*>(out),
                                  static_cast<const T*>(sinks), static_cast<const A*>(lse), p},
                p.batch * p.rows, p.heads, p.accumulate);
  });
}

}  // namespace ltrain
