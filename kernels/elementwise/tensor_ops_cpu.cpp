#include "kernels/elementwise/tensor_ops.h"

#include <algorithm>
#include <cstring>

#include "kernels/tensor/parallel_for.h"
#include "kernels/tensor/rng.h"

namespace ltrain::LT_ISA {

/// Uses all threads: the system zeroes fresh memory at the first touch, a page at a time.
void fill_zero_cpu(void* out, int64_t bytes) {
  constexpr int64_t kPiece = int64_t{2} << 20;  // size of a huge page
  parallel_for((bytes + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(out) + begin * kPiece, 0,
                static_cast<size_t>(std::min(bytes, end * kPiece) - begin * kPiece));
  });
}

void cast_cpu(DType to, DType from, void* out, const void* in, int64_t n) {
  dispatch_float(from, [&]<class F>() {
    dispatch_float(to, [&]<class T>() {
      const F* x = static_cast<const F*>(in);
      T* y = static_cast<T*>(out);
      parallel_for(n, 16384, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) put(y, i, static_cast<compute_t<T>>(get(x, i)));
      });
    });
  });
}

void add_to_cpu(DType t, void* y, const void* x, int64_t n) {
  dispatch_float(t, [&]<class T>() {
    T* to = static_cast<T*>(y);
    const T* from = static_cast<const T*>(x);
    parallel_for(n, 16384, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) put(to, i, get(to, i) + get(from, i));
    });
  });
}

void scale_by_cpu(DType t, void* y, int64_t n, double factor) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    T rounded[1];
    put(rounded, 0, A(factor));
    const A by = get(rounded, 0);
    T* to = static_cast<T*>(y);
    parallel_for(n, 16384, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) put(to, i, get(to, i) * by);
    });
  });
}

void add_bias_cpu(DType t, void* y, const void* bias, int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      const T* b = static_cast<const T*>(bias);
      for (int64_t row = begin; row < end; ++row) {
        T* out = static_cast<T*>(y) + row * cols;
        for (int64_t c = 0; c < cols; ++c) put(out, c, get(out, c) + get(b, c));
      }
    });
  });
}

void sum_rows_cpu(DType t, void* out, const void* x, int64_t rows, int64_t cols, bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    parallel_for(cols, 128, [&](int64_t begin, int64_t end) {
      A* total = static_cast<A*>(out);
      if (!accumulate) std::fill(total + begin, total + end, A(0));
      for (int64_t row = 0; row < rows; ++row) {
        const T* from = static_cast<const T*>(x) + row * cols;
        for (int64_t c = begin; c < end; ++c) total[c] += get(from, c);
      }
    });
  });
}

void sum_squares_cpu(DType t, double* total, const void* x, int64_t n) {
  // Blocks of fixed size, summed in order.
  constexpr int64_t kBlock = 1 << 16;
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  double* partial = scratch<double>(2, blocks);
  dispatch_float(t, [&]<class T>() {
    parallel_for(blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) {
        const T* from = static_cast<const T*>(x) + b * kBlock;
        const int64_t count = std::min(kBlock, n - b * kBlock);
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; ++i) {
          const double v = static_cast<double>(get(from, i));
          sum += v * v;
        }
        partial[b] = sum;
      }
    });
  });
  for (int64_t b = 0; b < blocks; ++b) *total += partial[b];
}

void fill_normal_cpu(DType t, void* out, int64_t n, uint64_t seed, uint64_t stream, int64_t first,
                     double mean, double std) {
  dispatch_float(t, [&]<class T>() {
    T* to = static_cast<T*>(out);
    parallel_for(n, 1024, [&](int64_t begin, int64_t end) {
      const uint64_t at = static_cast<uint64_t>(first);
      const auto set = [&](int64_t i, double normal) {
        put(to, i, static_cast<compute_t<T>>(mean + std * normal));
      };
      int64_t i = begin;
      if (((at + i) & 1) && i < end) {
        set(i, normal_value(seed, stream, at + i));
        ++i;
      }
      for (; i + 1 < end; i += 2) {
        const NormalPair p = normal_pair(seed, stream, (at + i) >> 1);
        set(i, p.even);
        set(i + 1, p.odd);
      }
      if (i < end) set(i, normal_value(seed, stream, at + i));
    });
  });
}

void fill_value_cpu(DType t, void* out, int64_t n, double value) {
  dispatch_float(t, [&]<class T>() {
    T* to = static_cast<T*>(out);
    parallel_for(n, 16384, [&](int64_t begin, int64_t end) {
      std::fill(to + begin, to + end, T(static_cast<compute_t<T>>(value)));
    });
  });
}

}  // namespace ltrain::LT_ISA
