#include "kernels/cuda/column_sums_cuda.h"
#include "kernels/cuda/fast_math_cuda.h"
#include "kernels/cuda/pack_cuda.h"
#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/swiglu_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

/// gelu(x) = x * share(x), and its slope. (1 + tanh(u)) / 2 is the sigmoid of 2u, u = x (a + b x^2).
template <class T>
struct Gelu {
  using A = compute_t<T>;
  A share, slope;
  __device__ explicit Gelu(A x) {
    if constexpr (is_half_v<T>) {
      constexpr float a = static_cast<float>(kGeluScale), b = static_cast<float>(kGeluScale * kGeluCubic);
      const float x2 = x * x;
      share = fast_reciprocal(1.0f + fast_exp2(x * (-2 * kLog2E * a + -2 * kLog2E * b * x2)));
      // the term in the middle is 2 du/dx
      slope = share + x * (2 * a + 6 * b * x2) * (share - share * share);
    } else {
      const A th = tanh(A(kGeluScale) * (x + A(kGeluCubic) * x * x * x));
      share = A(0.5) * (A(1) + th);
      slope = share + A(0.5) * x * (A(1) - th * th) * A(kGeluScale) * (A(1) + A(3 * kGeluCubic) * x * x);
    }
  }
};

/// The exact form.
template <class T>
struct GeluErf {
  using A = compute_t<T>;
  A share, slope;
  __device__ explicit GeluErf(A x) {
    share = A(0.5) * (A(1) + erf(A(kSqrtHalf) * x));
    slope = share + x * A(kNormalDensityAt0) * bell(x);
  }

 private:
  /// exp(-x^2 / 2).
  static __device__ A bell(A x) {
    if constexpr (is_half_v<T>) {
      return fast_exp2(-0.5f * kLog2E * x * x);
    } else {
      return exp(A(-0.5) * x * x);
    }
  }
};

// Gated activations: y of a gate and an up element, and the gradients, for elements of type T.

/// y = gate * sigmoid(alpha gate) * (up + 1) of clamped values.
template <class T>
struct ClampedSwiglu {
  using A = compute_t<T>;
  A gate, up, share;
  bool gate_free, up_free;
  __device__ ClampedSwiglu(A g, A u) {
    const A limit = A(kClampedSwigluLimit);
    gate_free = g <= limit;
    up_free = u >= -limit && u <= limit;
    gate = gate_free ? g : limit;
    up = u > limit ? limit : u < -limit ? -limit : u;
    share = sigmoid_for<T>(A(kClampedSwigluAlpha) * gate);
  }
  __device__ A value() const { return gate * share * (up + A(1)); }
  __device__ A to_gate(A dy) const {
    const A slope = share + gate * A(kClampedSwigluAlpha) * share * (A(1) - share);
    return gate_free ? dy * (up + A(1)) * slope : A(0);
  }
  __device__ A to_up(A dy) const { return up_free ? dy * gate * share : A(0); }
};

template <class T, class G>
struct GatedGelu {
  using A = compute_t<T>;
  A gate, up;
  G gelu;
  __device__ GatedGelu(A g, A u) : gate(g), up(u), gelu(g) {}
  __device__ A value() const { return gate * gelu.share * up; }
  __device__ A to_gate(A dy) const { return dy * up * gelu.slope; }
  __device__ A to_up(A dy) const { return dy * gate * gelu.share; }
};
template <class T>
struct Geglu : GatedGelu<T, Gelu<T>> {
  using GatedGelu<T, Gelu<T>>::GatedGelu;
};
template <class T>
struct GegluErf : GatedGelu<T, GeluErf<T>> {
  using GatedGelu<T, GeluErf<T>>::GatedGelu;
};

/// A block handles a run of packs of row blockIdx.x of y (RowGrid); rows of gate_up are twice as long.
template <class T, int N, class Gated>
__global__ void gated_forward(T* y, const T* gate_up, int64_t row_packs) {
  using A = compute_t<T>;
  const int64_t row = blockIdx.x, cols = row_packs * N, col = row_pack() * N;
  if (col >= cols) return;
  A g[N], u[N];
  load_values<N>(g, gate_up, 2 * row * cols + col);
  load_values<N>(u, gate_up, (2 * row + 1) * cols + col);
  for (int j = 0; j < N; ++j) g[j] = Gated(g[j], u[j]).value();
  store_values<N>(y, row * cols + col, g);
}

template <class T, int N, class Gated>
__global__ void gated_backward(T* dgate_up, const T* dy, const T* gate_up, int64_t row_packs) {
  using A = compute_t<T>;
  const int64_t row = blockIdx.x, cols = row_packs * N, col = row_pack() * N;
  if (col >= cols) return;
  A g[N], u[N], d[N];
  load_values<N>(g, gate_up, 2 * row * cols + col);
  load_values<N>(u, gate_up, (2 * row + 1) * cols + col);
  load_values<N>(d, dy, row * cols + col);
  for (int j = 0; j < N; ++j) {
    const Gated at(g[j], u[j]);
    g[j] = at.to_gate(d[j]);
    u[j] = at.to_up(d[j]);
  }
  store_values<N>(dgate_up, 2 * row * cols + col, g);
  store_values<N>(dgate_up, (2 * row + 1) * cols + col, u);
}

template <class G, int P, class T>
__device__ __forceinline__ void gelu_elements(T* y, const T* x, int64_t n) {
  over_packs<P>(n, [&]<int N>(int64_t i) {
    compute_t<T> v[N];
    load_values<N>(v, x, i);
    for (int j = 0; j < N; ++j) v[j] *= G(v[j]).share;
    store_values<N>(y, i, v);
  });
}

template <class G, int P, class T>
__device__ __forceinline__ void gelu_gradients(T* dx, const T* dy, const T* x, int64_t n) {
  over_packs<P>(n, [&]<int N>(int64_t i) {
    compute_t<T> v[N], d[N];
    load_values<N>(v, x, i);
    load_values<N>(d, dy, i);
    for (int j = 0; j < N; ++j) d[j] *= G(v[j]).slope;
    store_values<N>(dx, i, d);
  });
}

template <class T, int P>
__global__ void gelu_forward(T* y, const T* x, int64_t n) {
  gelu_elements<Gelu<T>, P>(y, x, n);
}

template <class T, int P>
__global__ void gelu_backward(T* dx, const T* dy, const T* x, int64_t n) {
  gelu_gradients<Gelu<T>, P>(dx, dy, x, n);
}

template <class T, int P>
__global__ void gelu_erf_forward(T* y, const T* x, int64_t n) {
  gelu_elements<GeluErf<T>, P>(y, x, n);
}

template <class T, int P>
__global__ void gelu_erf_backward(T* dx, const T* dy, const T* x, int64_t n) {
  gelu_gradients<GeluErf<T>, P>(dx, dy, x, n);
}

/// N elements of gelu's gradient for partial_column_sums: stores them, and gives them as stored.
template <class G, class T, int N>
struct GeluGradients {
  struct Loaded {
    Pack<T, N> dy, x;
  };
  static constexpr int kRows = sizeof(T) > 4 ? 1 : 2;
  T* dx;
  const T *dy, *x;
  int64_t cols;
  __device__ __forceinline__ Loaded load(int64_t row, int64_t col) const {
    const int64_t at = row * cols + col;
    return {.dy = cuda::load<T, N>(dy, at), .x = cuda::load<T, N>(x, at)};
  }
  __device__ __forceinline__ void operator()(compute_t<T>* v, const Loaded& loaded, int64_t row,
                                             int64_t col) const {
    compute_t<T> d[N];
    unpack(v, loaded.x);
    unpack(d, loaded.dy);
    for (int j = 0; j < N; ++j) d[j] *= G(v[j]).slope;
    const Pack<T, N> kept = rounded<T, N>(d);
    store(dx, row * cols + col, kept);
    unpack(v, kept);
  }
};

template <template <class> class Gated>
void forward(Stream& s, DType t, void* y, const void* gate_up, int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {y, gate_up}, [&]<int N>() {
      const RowGrid g(rows, cols / N);
      launch(s, g.grid, g.threads, 0, gated_forward<T, N, Gated<T>>, static_cast<T*>(y),
             static_cast<const T*>(gate_up), cols / N);
    });
  });
}

template <template <class> class Gated>
void backward(Stream& s, DType t, void* dgate_up, const void* dy, const void* gate_up, int64_t rows,
              int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {dgate_up, dy, gate_up}, [&]<int N>() {
      const RowGrid g(rows, cols / N);
      launch(s, g.grid, g.threads, 0, gated_backward<T, N, Gated<T>>, static_cast<T*>(dgate_up),
             static_cast<const T*>(dy), static_cast<const T*>(gate_up), cols / N);
    });
  });
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void swiglu_forward_cuda(Stream& s, DType t, void* y, const void* gate_up, int64_t rows, int64_t cols) {
  forward<Swiglu>(s, t, y, gate_up, rows, cols);
}

void swiglu_backward_cuda(Stream& s, DType t, void* dgate_up, const void* dy, const void* gate_up,
                          int64_t rows, int64_t cols) {
  backward<Swiglu>(s, t, dgate_up, dy, gate_up, rows, cols);
}

void clamped_swiglu_forward_cuda(Stream& s, DType t, void* y, const void* gate_up, int64_t rows,
                                 int64_t cols) {
  forward<ClampedSwiglu>(s, t, y, gate_up, rows, cols);
}

void clamped_swiglu_backward_cuda(Stream& s, DType t, void* dgate_up, const void* dy, const void* gate_up,
                                  int64_t rows, int64_t cols) {
  backward<ClampedSwiglu>(s, t, dgate_up, dy, gate_up, rows, cols);
}

void geglu_forward_cuda(Stream& s, DType t, void* y, const void* gate_up, int64_t rows, int64_t cols,
                        GeluForm form) {
  if (form == GeluForm::erf) return forward<GegluErf>(s, t, y, gate_up, rows, cols);
  forward<Geglu>(s, t, y, gate_up, rows, cols);
}

void geglu_backward_cuda(Stream& s, DType t, void* dgate_up, const void* dy, const void* gate_up,
                         int64_t rows, int64_t cols, GeluForm form) {
  if (form == GeluForm::erf) return backward<GegluErf>(s, t, dgate_up, dy, gate_up, rows, cols);
  backward<Geglu>(s, t, dgate_up, dy, gate_up, rows, cols);
}

void gelu_forward_cuda(Stream& s, DType t, void* y, const void* x, int64_t n, GeluForm form) {
  dispatch_float(t, [&]<class T>() {
    with_alignment<T>({y, x}, [&]<int N>() {
      const auto kernel = form == GeluForm::erf ? cuda::gelu_erf_forward<T, N> : cuda::gelu_forward<T, N>;
      launch(s, blocks_for(n / N, kThreads), kThreads, 0, kernel, static_cast<T*>(y),
             static_cast<const T*>(x), n);
    });
  });
}

void gelu_backward_cuda(Stream& s, DType t, void* dx, const void* dy, const void* x, int64_t n,
                        GeluForm form) {
  dispatch_float(t, [&]<class T>() {
    with_alignment<T>({dx, dy, x}, [&]<int N>() {
      const auto kernel = form == GeluForm::erf ? cuda::gelu_erf_backward<T, N> : cuda::gelu_backward<T, N>;
      launch(s, blocks_for(n / N, kThreads), kThreads, 0, kernel, static_cast<T*>(dx),
             static_cast<const T*>(dy), static_cast<const T*>(x), n);
    });
  });
}

void gelu_backward_sums_cuda(Stream& s, DType t, void* dx, void* sums, const void* dy, const void* x,
                             int64_t rows, int64_t cols, GeluForm form, bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {dx, sums, dy, x}, [&]<int N>() {
      const auto run = [&]<class G>() {
        column_sums<N>(s, static_cast<compute_t<T>*>(sums),
                       GeluGradients<G, T, N>{static_cast<T*>(dx), static_cast<const T*>(dy),
                                              static_cast<const T*>(x), cols},
                       rows, cols, accumulate);
      };
      if (form == GeluForm::erf)
        run.template operator()<GeluErf<T>>();
      else
        run.template operator()<Gelu<T>>();
    });
  });
}

}  // namespace ltrain
