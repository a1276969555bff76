#include <algorithm>

#include "kernels/elementwise/reduce.h"

namespace ltrain::LT_ISA {
namespace {

constexpr int64_t kBlock = 2048;  // elements; the block of sums fits the L1 cache

template <ReduceOp op, class A>
inline A combine(A a, A b) {
  if constexpr (op == ReduceOp::sum) return a + b;
  if constexpr (op == ReduceOp::max) return (b > a || b != b) ? b : a;
  return (b < a || b != b) ? b : a;
}

template <class T, class A>
inline A load(const T* p, int64_t i) {
  if constexpr (is_half_v<T>)
    return get(p, i);
  else
    return p[i];
}

/// `A`: type of the sums: float for 16-bit types, else T.
template <class T, class A, ReduceOp op>
void reduce(T* out, const void* const* sources, int count, int64_t n) {
  alignas(64) A sum[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t m = std::min(kBlock, n - begin);
    const T* first = static_cast<const T*>(sources[0]) + begin;
    const T* second = static_cast<const T*>(sources[1]) + begin;
    if (count == 2) {  // two ranks need no block of sums; `out` may be a source, element by element
      T* y = out + begin;
#pragma omp simd
      for (int64_t i = 0; i < m; ++i) {
        const A both = combine<op, A>(load<T, A>(first, i), load<T, A>(second, i));
        if constexpr (is_half_v<T>)
          put(y, i, both);
        else
          y[i] = both;
      }
      continue;
    }
    for (int64_t i = 0; i < m; ++i) sum[i] = combine<op, A>(load<T, A>(first, i), load<T, A>(second, i));
    for (int s = 2; s < count; ++s) {
      const T* x = static_cast<const T*>(sources[s]) + begin;
      for (int64_t i = 0; i < m; ++i) sum[i] = combine<op, A>(sum[i], load<T, A>(x, i));
    }
    T* y = out + begin;
    if constexpr (is_half_v<T>) {
      for (int64_t i = 0; i < m; ++i) put(y, i, sum[i]);
    } else {
      for (int64_t i = 0; i < m; ++i) y[i] = sum[i];
    }
  }
}

template <class T, class A>
void by_op(void* out, const void* const* sources, int count, int64_t n, ReduceOp op) {
  T* y = static_cast<T*>(out);
  if (op == ReduceOp::sum) reduce<T, A, ReduceOp::sum>(y, sources, count, n);
  if (op == ReduceOp::max) reduce<T, A, ReduceOp::max>(y, sources, count, n);
  if (op == ReduceOp::min) reduce<T, A, ReduceOp::min>(y, sources, count, n);
}

}  // namespace

void reduce_ordered_cpu(void* out, const void* const* sources, int count, int64_t elements, DType dtype,
                        ReduceOp op) {
  switch (dtype) {
    case DType::f32:
      return by_op<float, float>(out, sources, count, elements, op);
    case DType::f64:
      return by_op<double, double>(out, sources, count, elements, op);
    case DType::bf16:
      return by_op<bf16, float>(out, sources, count, elements, op);
    case DType::f16:
      return by_op<f16, float>(out, sources, count, elements, op);
    case DType::i32:
      return by_op<int32_t, int32_t>(out, sources, count, elements, op);
    case DType::i64:
      return by_op<int64_t, int64_t>(out, sources, count, elements, op);
    default:
      return;  // refused by the caller
  }
}

}  // namespace ltrain::LT_ISA
