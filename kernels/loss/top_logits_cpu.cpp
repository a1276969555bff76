#include <algorithm>
#include <limits>

#include "kernels/loss/soft_cap_cpu.h"
#include "kernels/loss/top_logits.h"
#include "kernels/tensor/parallel_for.h"
#include "kernels/tensor/vector_math.h"

namespace ltrain::LT_ISA {
namespace {

template <class T>
constexpr T kUnknown = -std::numeric_limits<T>::infinity();

template <class T>
void rest_stats(T* out, const T* x, const T* taught, int64_t columns, T cool) {
  T top = kUnknown<T>, sum = 0;
#pragma omp simd reduction(max : top)
  for (int64_t v = 0; v < columns; ++v) {
    const T of = taught[v] == kUnknown<T> ? x[v] : kUnknown<T>;
    top = of > top ? of : top;
  }
#pragma omp simd reduction(+ : sum)
  for (int64_t v = 0; v < columns; ++v)
    sum += taught[v] == kUnknown<T> ? fast_exp((x[v] - top) * cool) : T(0);
  out[kRestTop] = top;
  out[kRestSum] = sum;
}

template <class T>
void spread(T* teacher, T* stats, const T* student, const int32_t* ids, const T* values,
            const int32_t* targets, int64_t rows, int64_t vocab, int64_t k, VocabColumns part,
            double temperature, double soft_cap) {
  parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T *out = stats + row * kRestStats, *taught = teacher + row * vocab;
      if (targets[row] < 0) {
        std::fill_n(out, int{kRestStats}, T(0));
        continue;
      }
      std::fill_n(taught, part.columns, kUnknown<T>);
      for (int64_t i = 0; i < k; ++i) {
        const int64_t at = ids[row * k + i] - part.first;
        if (at >= 0 && at < part.columns) taught[at] = values[row * k + i];
      }
      const SeenRow<T> seen(student + row * vocab, part.columns, T(soft_cap));
      rest_stats(out, seen.x, taught, part.columns, static_cast<T>(1 / temperature));
    }
  });
}

template <class T>
void fill(T* teacher, const T* student, const T* rest, const int32_t* targets, const T* stats, int ranks,
          int64_t rows, int64_t vocab, VocabColumns part, double temperature, double soft_cap) {
  parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (targets[row] < 0) continue;
      T* taught = teacher + row * vocab;
      const T shift = rest_shift(stats, ranks, rows, row, rest[row], temperature);
      const SeenRow<T> seen(student + row * vocab, part.columns, T(soft_cap));
#pragma omp simd
      for (int64_t v = 0; v < part.columns; ++v)
        taught[v] = taught[v] == kUnknown<T> ? seen.x[v] + shift : taught[v];
    }
  });
}

}  // namespace

void spread_top_logits_cpu(DType t, void* teacher, void* stats, const void* student, const int32_t* ids,
                           const void* values, const int32_t* targets, int64_t rows, int64_t vocab, int64_t k,
                           VocabColumns part, double temperature, double soft_cap) {
  dispatch_wide(t, [&]<class T>() {
    spread(static_cast<T*>(teacher), static_cast<T*>(stats), static_cast<const T*>(student), ids,
           static_cast<const T*>(values), targets, rows, vocab, k, part, temperature, soft_cap);
  });
}

void fill_rest_logits_cpu(DType t, void* teacher, const void* student, const void* rest,
                          const int32_t* targets, const void* stats, int ranks, int64_t rows, int64_t vocab,
                          VocabColumns part, double temperature, double soft_cap) {
  dispatch_wide(t, [&]<class T>() {
    fill(static_cast<T*>(teacher), static_cast<const T*>(student), static_cast<const T*>(rest), targets,
         static_cast<const T*>(stats), ranks, rows, vocab, part, temperature, soft_cap);
  });
}

}  // namespace ltrain::LT_ISA
