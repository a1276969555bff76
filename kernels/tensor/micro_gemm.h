// Register-blocked matmul for tiles in cache, used by attention and the fp64 matmul. Only for *_cpu.cpp
// files: it is compiled for the instruction set of its includer.
//
//   C[m, n] (+)= sum_k A[m, k] * B[k, n]
//
// C and B have contiguous rows (strides ldc, ldb). A is read as a[m * a_row + k * a_col], so that A and A^T
// both work.
#pragma once
#include <cstdint>
#include <cstring>

#include "base/cpu_isa.h"

namespace ltrain::LT_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kTileRows = 6, kTileVectors = 4;  // 24 accumulators in 32 registers
#else
constexpr int kVectorBytes = 32;
constexpr int kTileRows = 6, kTileVectors = 2;  // 12 accumulators in 16 registers
#endif

template <class T>
struct Vec {
  typedef T type __attribute__((vector_size(kVectorBytes)));
  typedef T loose __attribute__((vector_size(kVectorBytes), aligned(alignof(T)), may_alias));
  static constexpr int width = kVectorBytes / static_cast<int>(sizeof(T));
};

/// One tile of R rows by V full vectors.
template <class T, int R, int V>
inline void gemm_tile(int64_t k_count, const T* a, int64_t a_row, int64_t a_col, const T* b, int64_t ldb,
                      T* c, int64_t ldc, bool accumulate) {
  using vec = typename Vec<T>::type;
  using loose = typename Vec<T>::loose;
  constexpr int W = Vec<T>::width;
  vec acc[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      acc[r][v] = accumulate ? vec(*reinterpret_cast<const loose*>(c + r * ldc + v * W)) : vec{};
  for (int64_t k = 0; k < k_count; ++k) {
    vec bv[V];
    for (int v = 0; v < V; ++v) bv[v] = *reinterpret_cast<const loose*>(b + k * ldb + v * W);
    for (int r = 0; r < R; ++r) {
      const T x = a[r * a_row + k * a_col];
      for (int v = 0; v < V; ++v) acc[r][v] += x * bv[v];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) *reinterpret_cast<loose*>(c + r * ldc + v * W) = acc[r][v];
}

/// Edge tile: R rows by n < V*W columns.
template <class T, int R>
inline void gemm_edge(int64_t k_count, int64_t n, const T* a, int64_t a_row, int64_t a_col, const T* b,
                      int64_t ldb, T* c, int64_t ldc, bool accumulate) {
  for (int r = 0; r < R; ++r)
    for (int64_t j = 0; j < n; ++j) {
      T sum = accumulate ? c[r * ldc + j] : T(0);
      for (int64_t k = 0; k < k_count; ++k) sum += a[r * a_row + k * a_col] * b[k * ldb + j];
      c[r * ldc + j] = sum;
    }
}

template <class T, int R>
inline void gemm_rows(int64_t n, int64_t k, const T* a, int64_t a_row, int64_t a_col, const T* b, int64_t ldb,
                      T* c, int64_t ldc, bool accumulate) {
  constexpr int W = Vec<T>::width;
  int64_t j = 0;
  for (; j + kTileVectors * W <= n; j += kTileVectors * W)
    gemm_tile<T, R, kTileVectors>(k, a, a_row, a_col, b + j, ldb, c + j, ldc, accumulate);
  for (; j + W <= n; j += W) gemm_tile<T, R, 1>(k, a, a_row, a_col, b + j, ldb, c + j, ldc, accumulate);
  if (j < n) gemm_edge<T, R>(k, n - j, a, a_row, a_col, b + j, ldb, c + j, ldc, accumulate);
}

template <class T>
void micro_gemm(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, int64_t a_col, const T* b,
                int64_t ldb, T* c, int64_t ldc, bool accumulate) {
  int64_t i = 0;
  for (; i + kTileRows <= m; i += kTileRows)
    gemm_rows<T, kTileRows>(n, k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, accumulate);
  for (; i + 4 <= m; i += 4)
    gemm_rows<T, 4>(n, k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, accumulate);
  for (; i < m; ++i) gemm_rows<T, 1>(n, k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, accumulate);
}

}  // namespace
}  // namespace ltrain::LT_ISA
