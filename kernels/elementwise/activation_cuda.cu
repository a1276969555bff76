#include "kernels/cuda/pack_cuda.h"
#include "kernels/elementwise/activation.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = 256;

inline __device__ float exponential(float x) { return expf(x); }
inline __device__ double exponential(double x) { return exp(x); }

template <class A>
__device__ A sigmoid(A x) {
  return A(1) / (A(1) + exponential(-x));
}

/// gelu(x) = x * share(x), and its slope.
template <class A>
struct Gelu {
  A share, slope;
  __device__ explicit Gelu(A x) {
    const A th = tanh(A(kGeluScale) * (x + A(kGeluCubic) * x * x * x));
    share = A(0.5) * (A(1) + th);
    slope = share + A(0.5) * x * (A(1) - th * th) * A(kGeluScale) * (A(1) + A(3 * kGeluCubic) * x * x);
  }
};

/// y = gate * sigmoid(alpha gate) * (up + 1) of clamped values.
template <class A>
struct Clamped {
  A gate, up, share;
  bool gate_free, up_free;
  __device__ Clamped(A g, A u) {
    const A limit = A(kClampedSwigluLimit);
    gate_free = g <= limit;
    up_free = u >= -limit && u <= limit;
    gate = gate_free ? g : limit;
    up = u > limit ? limit : u < -limit ? -limit : u;
    share = sigmoid(A(kClampedSwigluAlpha) * gate);
  }
};

template <class T, int N>
__global__ void swiglu_forward(T* y, const T* gate_up, int64_t packs, int64_t row_packs) {
  using A = compute_t<T>;
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    const int64_t row = i / row_packs, gate = (i + row * row_packs) * N;  // rows of gate_up are twice as long
    const auto g = load<T, N>(gate_up, gate), u = load<T, N>(gate_up, gate + row_packs * N);
    Pack<T, N> out;
    for (int j = 0; j < N; ++j) {
      const A x = get(g.v, j);
      put(out.v, j, x * sigmoid(x) * get(u.v, j));
    }
    store(y, i * N, out);
  }
}

template <class T, int N>
__global__ void swiglu_backward(T* dgate_up, const T* dy, const T* gate_up, int64_t packs,
                                int64_t row_packs) {
  using A = compute_t<T>;
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    const int64_t row = i / row_packs, gate = (i + row * row_packs) * N;
    const auto g = load<T, N>(gate_up, gate), u = load<T, N>(gate_up, gate + row_packs * N);
    const auto d = load<T, N>(dy, i * N);
    Pack<T, N> dg, du;
    for (int j = 0; j < N; ++j) {
      const A x = get(g.v, j), grad = get(d.v, j), sg = sigmoid(x);
      put(dg.v, j, grad * get(u.v, j) * sg * (A(1) + x * (A(1) - sg)));
      put(du.v, j, grad * x * sg);
    }
    store(dgate_up, gate, dg);
    store(dgate_up, gate + row_packs * N, du);
  }
}

template <class T, int N>
__global__ void clamped_swiglu_forward(T* y, const T* gate_up, int64_t packs, int64_t row_packs) {
  using A = compute_t<T>;
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    const int64_t row = i / row_packs, gate = (i + row * row_packs) * N;  // rows of gate_up are twice as long
    const auto g = load<T, N>(gate_up, gate), u = load<T, N>(gate_up, gate + row_packs * N);
    Pack<T, N> out;
    for (int j = 0; j < N; ++j) {
      const Clamped<A> c(get(g.v, j), get(u.v, j));
      put(out.v, j, c.gate * c.share * (c.up + A(1)));
    }
    store(y, i * N, out);
  }
}

template <class T, int N>
__global__ void clamped_swiglu_backward(T* dgate_up, const T* dy, const T* gate_up, int64_t packs,
                                        int64_t row_packs) {
  using A = compute_t<T>;
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    const int64_t row = i / row_packs, gate = (i + row * row_packs) * N;
    const auto g = load<T, N>(gate_up, gate), u = load<T, N>(gate_up, gate + row_packs * N);
    const auto d = load<T, N>(dy, i * N);
    Pack<T, N> dg, du;
    for (int j = 0; j < N; ++j) {
      const A grad = get(d.v, j);
      const Clamped<A> c(get(g.v, j), get(u.v, j));
      const A slope = c.share + c.gate * A(kClampedSwigluAlpha) * c.share * (A(1) - c.share);
      put(dg.v, j, c.gate_free ? grad * (c.up + A(1)) * slope : A(0));
      put(du.v, j, c.up_free ? grad * c.gate * c.share : A(0));
    }
    store(dgate_up, gate, dg);
    store(dgate_up, gate + row_packs * N, du);
  }
}

template <class T, int N>
__global__ void geglu_forward(T* y, const T* gate_up, int64_t packs, int64_t row_packs) {
  using A = compute_t<T>;
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    const int64_t row = i / row_packs, gate = (i + row * row_packs) * N;  // rows of gate_up are twice as long
    const auto g = load<T, N>(gate_up, gate), u = load<T, N>(gate_up, gate + row_packs * N);
    Pack<T, N> out;
    for (int j = 0; j < N; ++j) {
      const A x = get(g.v, j);
      put(out.v, j, x * Gelu<A>(x).share * get(u.v, j));
    }
    store(y, i * N, out);
  }
}

template <class T, int N>
__global__ void geglu_backward(T* dgate_up, const T* dy, const T* gate_up, int64_t packs, int64_t row_packs) {
  using A = compute_t<T>;
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    const int64_t row = i / row_packs, gate = (i + row * row_packs) * N;
    const auto g = load<T, N>(gate_up, gate), u = load<T, N>(gate_up, gate + row_packs * N);
    const auto d = load<T, N>(dy, i * N);
    Pack<T, N> dg, du;
    for (int j = 0; j < N; ++j) {
      const A x = get(g.v, j), grad = get(d.v, j);
      const Gelu<A> gelu(x);
      put(dg.v, j, grad * get(u.v, j) * gelu.slope);
      put(du.v, j, grad * x * gelu.share);
    }
    store(dgate_up, gate, dg);
    store(dgate_up, gate + row_packs * N, du);
  }
}

template <class T, int N>
__global__ void gelu_forward(T* y, const T* x, int64_t packs) {
  using A = compute_t<T>;
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    const auto in = load<T, N>(x, i * N);
    Pack<T, N> out;
    for (int j = 0; j < N; ++j) {
      const A v = get(in.v, j);
      put(out.v, j, A(0.5) * v * (A(1) + tanh(A(kGeluScale) * (v + A(kGeluCubic) * v * v * v))));
    }
    store(y, i * N, out);
  }
}

template <class T, int N>
__global__ void gelu_backward(T* dx, const T* dy, const T* x, int64_t packs) {
  using A = compute_t<T>;
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    const auto in = load<T, N>(x, i * N), d = load<T, N>(dy, i * N);
    Pack<T, N> out;
    for (int j = 0; j < N; ++j) {
      const A v = get(in.v, j);
      const A th = tanh(A(kGeluScale) * (v + A(kGeluCubic) * v * v * v));
      const A slope = A(0.5) * (A(1) + th) +
                      A(0.5) * v * (A(1) - th * th) * A(kGeluScale) * (A(1) + A(3 * kGeluCubic) * v * v);
      put(out.v, j, get(d.v, j) * slope);
    }
    store(dx, i * N, out);
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void swiglu_forward_cuda(Stream& s, DType t, void* y, const void* gate_up, int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {y, gate_up}, [&]<int N>() {
      launch(s, blocks_for(rows * cols / N, kThreads), kThreads, 0, cuda::swiglu_forward<T, N>,
             static_cast<T*>(y), static_cast<const T*>(gate_up), rows * cols / N, cols / N);
    });
  });
}

void swiglu_backward_cuda(Stream& s, DType t, void* dgate_up, const void* dy, const void* gate_up,
                          int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {dgate_up, dy, gate_up}, [&]<int N>() {
      launch(s, blocks_for(rows * cols / N, kThreads), kThreads, 0, cuda::swiglu_backward<T, N>,
             static_cast<T*>(dgate_up), static_cast<const T*>(dy), static_cast<const T*>(gate_up),
             rows * cols / N, cols / N);
    });
  });
}

void clamped_swiglu_forward_cuda(Stream& s, DType t, void* y, const void* gate_up, int64_t rows,
                                 int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {y, gate_up}, [&]<int N>() {
      launch(s, blocks_for(rows * cols / N, kThreads), kThreads, 0, cuda::clamped_swiglu_forward<T, N>,
             static_cast<T*>(y), static_cast<const T*>(gate_up), rows * cols / N, cols / N);
    });
  });
}

void clamped_swiglu_backward_cuda(Stream& s, DType t, void* dgate_up, const void* dy, const void* gate_up,
                                  int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {dgate_up, dy, gate_up}, [&]<int N>() {
      launch(s, blocks_for(rows * cols / N, kThreads), kThreads, 0, cuda::clamped_swiglu_backward<T, N>,
             static_cast<T*>(dgate_up), static_cast<const T*>(dy), static_cast<const T*>(gate_up),
             rows * cols / N, cols / N);
    });
  });
}

void geglu_forward_cuda(Stream& s, DType t, void* y, const void* gate_up, int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {y, gate_up}, [&]<int N>() {
      launch(s, blocks_for(rows * cols / N, kThreads), kThreads, 0, cuda::geglu_forward<T, N>,
             static_cast<T*>(y), static_cast<const T*>(gate_up), rows * cols / N, cols / N);
    });
  });
}

void geglu_backward_cuda(Stream& s, DType t, void* dgate_up, const void* dy, const void* gate_up,
                         int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {dgate_up, dy, gate_up}, [&]<int N>() {
      launch(s, blocks_for(rows * cols / N, kThreads), kThreads, 0, cuda::geglu_backward<T, N>,
             static_cast<T*>(dgate_up), static_cast<const T*>(dy), static_cast<const T*>(gate_up),
             rows * cols / N, cols / N);
    });
  });
}

void gelu_forward_cuda(Stream& s, DType t, void* y, const void* x, int64_t n) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(n, {y, x}, [&]<int N>() {
      launch(s, blocks_for(n / N, kThreads), kThreads, 0, cuda::gelu_forward<T, N>, static_cast<T*>(y),
             static_cast<const T*>(x), n / N);
    });
  });
}

void gelu_backward_cuda(Stream& s, DType t, void* dx, const void* dy, const void* x, int64_t n) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(n, {dx, dy, x}, [&]<int N>() {
      launch(s, blocks_for(n / N, kThreads), kThreads, 0, cuda::gelu_backward<T, N>, static_cast<T*>(dx),
             static_cast<const T*>(dy), static_cast<const T*>(x), n / N);
    });
  });
}

}  // namespace ltrain
