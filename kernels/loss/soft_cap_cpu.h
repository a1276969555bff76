// Soft-cap of scores and logits, cap * tanh(x / cap) (arXiv:2408.00118, section 2). Only for *_cpu.cpp files.
#pragma once
#include "kernels/tensor/parallel_for.h"
#include "kernels/tensor/vector_math.h"

namespace ltrain::LT_ISA {
namespace {

template <class A>
struct SoftCapped {
  A value, slope;
};

/// tanh(u) to a few units in the last place. Near 0, where 1 - exp(-2u) cancels, a polynomial: the error of
/// fast_tanh is small relative to 1, but not relative to u.
template <class A>
inline A close_tanh(A u, A e) {
  const A size = u < 0 ? -u : u, square = u * u;
  A p = A(-5.70498872745e-3);
  p = p * square + A(2.06390887954e-2);
  p = p * square + A(-5.37397155531e-2);
  p = p * square + A(1.33314422036e-1);
  p = p * square + A(-3.33332819422e-1);
  const A small = u + u * square * p, large = (A(1) - e) / (A(1) + e);
  return size < A(0.625) ? small : u < 0 ? -large : large;
}

/// The slope 1 - tanh^2 is computed as 4e / (1 + e)^2, e = exp(-2 |x| / cap), which does not cancel near the
/// cap.
template <class A>
inline SoftCapped<A> soft_cap(A x, A cap) {
  const A u = x / cap, e = fast_exp(A(-2) * (u < 0 ? -u : u)), sum = A(1) + e;
  A t;
  if constexpr (sizeof(A) == sizeof(double))
    t = std::tanh(u);
  else
    t = close_tanh(u, e);
  return {cap * t, A(4) * e / (sum * sum)};
}

/// A row of logits after the soft-cap, and the slopes for the gradient; without a soft-cap the row itself and
/// null. In scratch of the thread, because the gradient may overwrite the logits.
template <class T>
struct SeenRow {
  const T* x;
  const T* slope = nullptr;
  SeenRow(const T* logits, int64_t columns, T cap) : x(logits) {
    if (!(cap > 0)) return;
    T* capped = scratch<T>(4, 2 * columns);
    T* slopes = capped + columns;
#pragma omp simd
    for (int64_t v = 0; v < columns; ++v) {
      const SoftCapped<T> s = soft_cap(logits[v], cap);
      capped[v] = s.value;
      slopes[v] = s.slope;
    }
    x = capped;
    slope = slopes;
  }
};

}  // namespace
}  // namespace ltrain::LT_ISA
