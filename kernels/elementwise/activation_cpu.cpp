#include "kernels/elementwise/activation.h"

#include "kernels/elementwise/swiglu_row_cpu.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/tensor/parallel_for.h"
#include "kernels/tensor/vector_math.h"

namespace ltrain::LT_ISA {
namespace {

/// gelu(x) = x * share(x), and its slope.
template <class A, GeluForm form>
struct Gelu;

template <class A>
struct Gelu<A, GeluForm::tanh> {
  A share, slope;
  explicit Gelu(A x) {
    const A th = fast_tanh(A(kGeluScale) * (x + A(kGeluCubic) * x * x * x));
    share = A(0.5) * (A(1) + th);
    slope = share + A(0.5) * x * (A(1) - th * th) * A(kGeluScale) * (A(1) + A(3 * kGeluCubic) * x * x);
  }
};

template <class A>
struct Gelu<A, GeluForm::erf> {
  A share, slope;
  explicit Gelu(A x) {
    const A bell = fast_exp(A(-0.5) * x * x);
    const A tail = normal_tail(x < 0 ? -x : x, bell);
    share = x < 0 ? tail : A(1) - tail;
    slope = share + x * A(kNormalDensityAt0) * bell;
  }
};

/// Calls `f` with the form as a template argument.
template <class F>
void with_form(GeluForm form, F&& f) {
  if (form == GeluForm::erf)
    f.template operator()<GeluForm::erf>();
  else
    f.template operator()<GeluForm::tanh>();
}

/// y = gate * sigmoid(alpha gate) * (up + 1) of clamped values.
template <class A>
struct Clamped {
  A gate, up, share;
  bool gate_free, up_free;
  Clamped(A g, A u) {
    constexpr A kLimit = A(kClampedSwigluLimit);
    gate_free = g <= kLimit;
    up_free = u >= -kLimit && u <= kLimit;
    gate = gate_free ? g : kLimit;
    up = u > kLimit ? kLimit : u < -kLimit ? -kLimit : u;
    share = sigmoid(A(kClampedSwigluAlpha) * gate);
  }
};

}  // namespace

void swiglu_forward_cpu(DType t, void* y, const void* gate_up, int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    parallel_for(rows, 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        swiglu_row(static_cast<T*>(y) + row * cols, static_cast<const T*>(gate_up) + row * 2 * cols, cols);
    });
  });
}

void swiglu_backward_cpu(DType t, void* dgate_up, const void* dy, const void* gate_up, int64_t rows,
                         int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    parallel_for(rows, 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        swiglu_gradient_row(static_cast<T*>(dgate_up) + row * 2 * cols,
                            static_cast<const T*>(dy) + row * cols,
                            static_cast<const T*>(gate_up) + row * 2 * cols, cols);
    });
  });
}

void clamped_swiglu_forward_cpu(DType t, void* y, const void* gate_up, int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    parallel_for(rows, 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* gate = static_cast<const T*>(gate_up) + row * 2 * cols;
        const T* up = gate + cols;
        T* out = static_cast<T*>(y) + row * cols;
#pragma omp simd
        for (int64_t c = 0; c < cols; ++c) {
          const Clamped<A> v(get(gate, c), get(up, c));
          put(out, c, v.gate * v.share * (v.up + A(1)));
        }
      }
    });
  });
}

void clamped_swiglu_backward_cpu(DType t, void* dgate_up, const void* dy, const void* gate_up, int64_t rows,
                                 int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    parallel_for(rows, 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* gate = static_cast<const T*>(gate_up) + row * 2 * cols;
        const T* up = gate + cols;
        const T* grad = static_cast<const T*>(dy) + row * cols;
        T* dgate = static_cast<T*>(dgate_up) + row * 2 * cols;
        T* dup = dgate + cols;
#pragma omp simd
        for (int64_t c = 0; c < cols; ++c) {
          const A d = get(grad, c);
          const Clamped<A> v(get(gate, c), get(up, c));
          const A slope = v.share + v.gate * A(kClampedSwigluAlpha) * v.share * (A(1) - v.share);
          put(dgate, c, v.gate_free ? d * (v.up + A(1)) * slope : A(0));
          put(dup, c, v.up_free ? d * v.gate * v.share : A(0));
        }
      }
    });
  });
}

void geglu_forward_cpu(DType t, void* y, const void* gate_up, int64_t rows, int64_t cols, GeluForm form) {
  dispatch_float(t, [&]<class T>() {
    with_form(form, [&]<GeluForm kForm>() {
      using A = compute_t<T>;
      parallel_for(rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const T* gate = static_cast<const T*>(gate_up) + row * 2 * cols;
          const T* up = gate + cols;
          T* out = static_cast<T*>(y) + row * cols;
#pragma omp simd
          for (int64_t c = 0; c < cols; ++c) {
            const A g = get(gate, c);
            put(out, c, g * Gelu<A, kForm>(g).share * get(up, c));
          }
        }
      });
    });
  });
}

void geglu_backward_cpu(DType t, void* dgate_up, const void* dy, const void* gate_up, int64_t rows,
                        int64_t cols, GeluForm form) {
  dispatch_float(t, [&]<class T>() {
    with_form(form, [&]<GeluForm kForm>() {
      using A = compute_t<T>;
      parallel_for(rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const T* gate = static_cast<const T*>(gate_up) + row * 2 * cols;
          const T* up = gate + cols;
          const T* grad = static_cast<const T*>(dy) + row * cols;
          T* dgate = static_cast<T*>(dgate_up) + row * 2 * cols;
          T* dup = dgate + cols;
#pragma omp simd
          for (int64_t c = 0; c < cols; ++c) {
            const A g = get(gate, c), u = get(up, c), d = get(grad, c);
            const Gelu<A, kForm> gelu(g);
            put(dgate, c, d * u * gelu.slope);
            put(dup, c, d * g * gelu.share);
          }
        }
      });
    });
  });
}

void gelu_forward_cpu(DType t, void* y, const void* x, int64_t n, GeluForm form) {
  dispatch_float(t, [&]<class T>() {
    with_form(form, [&]<GeluForm kForm>() {
      using A = compute_t<T>;
      const T* in = static_cast<const T*>(x);
      T* out = static_cast<T*>(y);
      parallel_for(n, 4096, [&](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          const A v = get(in, i);
          put(out, i, v * Gelu<A, kForm>(v).share);
        }
      });
    });
  });
}

void gelu_backward_cpu(DType t, void* dx, const void* dy, const void* x, int64_t n, GeluForm form) {
  dispatch_float(t, [&]<class T>() {
    with_form(form, [&]<GeluForm kForm>() {
      using A = compute_t<T>;
      const T* in = static_cast<const T*>(x);
      const T* grad = static_cast<const T*>(dy);
      T* out = static_cast<T*>(dx);
      parallel_for(n, 4096, [&](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) put(out, i, get(grad, i) * Gelu<A, kForm>(get(in, i)).slope);
      });
    });
  });
}

void gelu_backward_sums_cpu(DType t, void* dx, void* sums, const void* dy, const void* x, int64_t rows,
                            int64_t cols, GeluForm form, bool accumulate) {
  gelu_backward_cpu(t, dx, dy, x, rows * cols, form);
  sum_rows_cpu(t, sums, dx, rows, cols, accumulate);
}

}  // namespace ltrain::LT_ISA
