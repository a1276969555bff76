// Matmuls of few rows with a stored matrix, as in decoding, one for each token. Every row of the matrix is
// read once, unpacked: packing would cost more than the matmul.
#include "kernels/matmul/matmul.h"
#include "kernels/tensor/micro_gemm.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

using Lanes = Vec<float>::type;
constexpr int kFloats = Vec<float>::width;

inline Lanes load(const float* from) { return *reinterpret_cast<const Vec<float>::loose*>(from); }
inline Lanes load(const bf16* from) {
  typedef uint16_t Short __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));
  typedef uint32_t Wide __attribute__((vector_size(kVectorBytes)));
  const Wide bits = __builtin_convertvector(*reinterpret_cast<const Short*>(from), Wide) << 16;
  Lanes lanes;
  std::memcpy(&lanes, &bits, sizeof(lanes));
  return lanes;
}
inline Lanes load(const f16* from) {
  Lanes lanes;
  for (int i = 0; i < kFloats; ++i) lanes[i] = get(from, i);
  return lanes;
}

/// Pairwise sum: a chain over the lanes would take as long as a row of a few hundred elements.
template <int N>
inline float sum_lanes(const float* lanes) {
  if constexpr (N == 1) {
    return *lanes;
  } else {
    typedef float Half __attribute__((vector_size(N * sizeof(float) / 2)));
    Half half[2];
    std::memcpy(half, lanes, sizeof(half));
    half[0] += half[1];
    return sum_lanes<N / 2>(reinterpret_cast<const float*>(half));
  }
}

/// Dot products of M rows of a with R rows of b, each with a fixed order. sums: (R, M).
template <class T, int M, int R>
inline void dots(float* sums, const T* a, const T* b, int64_t k) {
  Lanes acc[R][M];
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < M; ++i) acc[r][i] = Lanes{};
  int64_t at = 0;
  for (; at + kFloats <= k; at += kFloats) {
    Lanes x[M];
    for (int i = 0; i < M; ++i) x[i] = load(a + i * k + at);
    for (int r = 0; r < R; ++r) {
      const Lanes y = load(b + r * k + at);
      for (int i = 0; i < M; ++i) acc[r][i] += x[i] * y;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < M; ++i) {
      float sum = sum_lanes<kFloats>(reinterpret_cast<const float*>(&acc[r][i]));
      for (int64_t c = at; c < k; ++c) sum += get(a, i * k + c) * get(b, r * k + c);
      sums[r * M + i] = sum;
    }
}

/// Rows of b at a time, limited by registers for the sums.
constexpr int rows_at_once(int m) { return m == 1 ? 8 : m <= 4 ? (kVectorBytes == 64 ? 4 : 2) : 1; }

template <class T, class O, int M>
void multiply(O* out, const T* a, const T* b, const O* bias, int64_t n, int64_t k, bool accumulate) {
  constexpr int R = rows_at_once(M);
  // Elements of b that pay for a thread. Half of that does not pay if other processes use the cores: a thread
  // without a core keeps this one waiting.
  constexpr int64_t kWorth = 1 << 15;
  const auto finish = [&](const float* sums, int64_t j, int rows) {
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < M; ++i) {
        const int64_t at = i * n + j + r;
        float v = sums[r * M + i];
        if (bias) v += get(bias, j + r);
        if (accumulate) v += get(out, at);
        put(out, at, v);
      }
  };
  parallel_for((n + R - 1) / R, 1 + kWorth / (R * k), [&](int64_t begin, int64_t end) {
    float sums[R * M];
    for (int64_t j = begin * R; j < std::min(n, end * R);) {
      if (j + R <= n) {
        dots<T, M, R>(sums, a, b + j * k, k);
        finish(sums, j, R);
        j += R;
      } else {
        dots<T, M, 1>(sums, a, b + j * k, k);
        finish(sums, j, 1);
        ++j;
      }
    }
  });
}

}  // namespace

void matmul_few_rows_cpu(DType in, DType out_type, void* out, const void* a, const void* b, const void* bias,
                         int64_t m, int64_t n, int64_t k, bool accumulate) {
  const auto run = [&]<class T, class O>() {
    const auto rows = [&]<int M>() {
      multiply<T, O, M>(static_cast<O*>(out), static_cast<const T*>(a), static_cast<const T*>(b),
                        static_cast<const O*>(bias), n, k, accumulate);
    };
    static_assert(kFewRows == 8);
    switch (m) {
      case 1:
        return rows.template operator()<1>();
      case 2:
        return rows.template operator()<2>();
      case 3:
        return rows.template operator()<3>();
      case 4:
        return rows.template operator()<4>();
      case 5:
        return rows.template operator()<5>();
      case 6:
        return rows.template operator()<6>();
      case 7:
        return rows.template operator()<7>();
      default:
        return rows.template operator()<8>();
    }
  };
  if (in == DType::f32) return run.template operator()<float, float>();
  dispatch_half(in, [&]<class T>() {
    out_type == DType::f32 ? run.template operator()<T, float>() : run.template operator()<T, T>();
  });
}

}  // namespace ltrain::LT_ISA
