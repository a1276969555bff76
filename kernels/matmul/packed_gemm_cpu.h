// Packed matmuls: blocks of a and b are copied into panels, in the order in which the register tile reads
// them, and widened to f32. After "Anatomy of High-Performance Matrix Multiplication" (Goto and van de Geijn,
// 2008). Only for *_cpu.cpp files: it is compiled for the instruction set of its includer.
//
// A panel of a has kPanelRows rows, interleaved for each k; a panel of b has kPanelCols columns, in the same
// way. Elements beyond the matrix are 0.
//
// bf16 with the CPU's own instruction (pairs): an f32 slot of a panel holds two neighbours along k, and
// VDPBF16PS multiplies and adds both. Depths and sizes are then counted in pairs.
#pragma once
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <type_traits>

#include "kernels/matmul/packed_gemm.h"
#include "kernels/tensor/fp8.h"
#include "kernels/tensor/micro_gemm.h"

namespace ltrain::LT_ISA {
namespace packed {
namespace {

using Lanes = Vec<float>::type;
using Loose = Vec<float>::loose;
constexpr int kLanes = Vec<float>::width;
#if defined(__AVX512F__)
constexpr int kPanelRows = 14;  // 28 accumulators in 32 registers
#else
constexpr int kPanelRows = 6;  // 12 accumulators in 16 registers
#endif
constexpr int kPanelVectors = 2, kPanelCols = kPanelVectors * kLanes;
constexpr int64_t kAhead = 64;      // prefetch distance within a row, in elements
constexpr int64_t kSumsAhead = 32;  // prefetch distance in a panel of b, in steps of k
static_assert(kPackTileRows % kPanelRows == 0 && kPackTileCols % kPanelCols == 0 &&
              kRowBlock % kPackTileRows == 0 && kColBlock % kPackTileCols == 0);

/// Row-major elements: `stride` elements from row to row. load() reads kLanes neighbours.
template <class T>
struct Matrix {
  const T* data;
  int64_t stride;

  static constexpr bool kFp8 = false, kPairs = false;
  const T* at(int64_t row, int64_t col) const { return data + row * stride + col; }
  float get(int64_t row, int64_t col) const { return ltrain::get(at(row, col), 0); }
  Lanes load(int64_t row, int64_t col) const {
    const T* from = at(row, col);
    if constexpr (std::is_same_v<T, float>) {
      return *reinterpret_cast<const Loose*>(from);
    } else if constexpr (std::is_same_v<T, bf16>) {
      typedef uint16_t Short __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));
      typedef uint32_t Wide __attribute__((vector_size(kVectorBytes)));
      return reinterpret_cast<Lanes>(__builtin_convertvector(*reinterpret_cast<const Short*>(from), Wide)
                                     << 16);
    } else {
      Lanes x;
      for (int i = 0; i < kLanes; ++i) x[i] = ltrain::get(from, i);
      return x;
    }
  }
};

/// bf16 in pairs along k of length `depth`; the second element of a last odd pair is 0. Along: the matrix is
/// (rows, k), and the column index counts pairs. Otherwise it is (k, rows), and the row index counts pairs.
template <bool Along>
struct PairMatrix {
  static constexpr bool kFp8 = false, kPairs = true;
  const bf16* data;
  int64_t stride, depth;
  typedef uint16_t Short __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));
  typedef uint32_t Wide __attribute__((vector_size(kVectorBytes)));

  const bf16* at(int64_t row, int64_t col) const {
    return Along ? data + row * stride + 2 * col : data + 2 * row * stride + col;
  }
  float get(int64_t row, int64_t col) const {
    const bf16* first = at(row, col);
    uint16_t pair[2] = {};
    std::memcpy(pair, first, 2);
    if (2 * (Along ? col : row) + 1 < depth) std::memcpy(pair + 1, first + (Along ? 1 : stride), 2);
    float both;
    std::memcpy(&both, pair, 4);
    return both;
  }
  Lanes load(int64_t row, int64_t col) const {
    const bf16* from = at(row, col);
    if constexpr (Along) {
      if (2 * (col + kLanes) <= depth) {
        Lanes x;
        std::memcpy(&x, from, sizeof x);
        return x;
      }
      float x[kLanes];
      for (int i = 0; i < kLanes; ++i) x[i] = get(row, col + i);
      Lanes lanes;
      std::memcpy(&lanes, x, sizeof lanes);
      return lanes;
    } else {
      const Wide low = __builtin_convertvector(*reinterpret_cast<const Short*>(from), Wide);
      if (2 * row + 1 >= depth) return reinterpret_cast<Lanes>(low);
      const Wide high = __builtin_convertvector(*reinterpret_cast<const Short*>(from + stride), Wide);
      return reinterpret_cast<Lanes>(low | high << 16);
    }
  }
};

/// f32 rounded to the 10 mantissa bits of TF32: to nearest, ties to even; NaN stays NaN.
struct Tf32Matrix {
  static constexpr bool kFp8 = false, kPairs = false;
  const float* data;
  int64_t stride;

  const float* at(int64_t row, int64_t col) const { return data + row * stride + col; }
  static float round(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    if ((u & 0x7fffffffu) <= 0x7f800000u) u = (u + 0xfffu + ((u >> 13) & 1u)) & ~0x1fffu;
    std::memcpy(&x, &u, 4);
    return x;
  }
  float get(int64_t row, int64_t col) const { return round(*at(row, col)); }
  Lanes load(int64_t row, int64_t col) const {
    float x[kLanes];
    for (int i = 0; i < kLanes; ++i) x[i] = round(at(row, col)[i]);
    Lanes lanes;
    std::memcpy(&lanes, x, sizeof lanes);
    return lanes;
  }
};

/// Interleaves the lower (upper) halves of a and b into even and odd lanes.
template <bool Upper>
inline Lanes interleave(Lanes a, Lanes b) {
  typedef int32_t Index __attribute__((vector_size(kVectorBytes)));
  Index index;
  for (int i = 0; i < kLanes; ++i) index[i] = (Upper ? kLanes / 2 : 0) + i / 2 + (i % 2 ? kLanes : 0);
  return __builtin_shuffle(a, b, index);
}

/// Transposes x, a square of kLanes rows, by a perfect shuffle for each bit of an index.
inline void transpose(Lanes* x) {
#pragma GCC unroll 4
  for (int n = 1; n < kLanes; n *= 2) {
    Lanes y[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      y[2 * i] = interleave<false>(x[i], x[i + kLanes / 2]);
      y[2 * i + 1] = interleave<true>(x[i], x[i + kLanes / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) x[i] = y[i];
  }
}

/// Packs one panel of R rows that are contiguous along k: src (row + r, k0 + k) to dst[k * R + r]. Full
/// vectors are stored in memory order, and the last one reaches into the next panel (kPackOver).
template <int R, class Source>
void pack_transposed(float* dst, const Source& src, int64_t row, int64_t rows, int64_t k0, int64_t depth) {
  for (int r0 = 0; r0 < R; r0 += kLanes) {
    const int wide = std::min(kLanes, R - r0);
    const int have = static_cast<int>(std::clamp<int64_t>(rows - r0, 0, wide));
    for (int64_t k = 0; k < depth; k += kLanes) {
      const int some = static_cast<int>(std::min<int64_t>(kLanes, depth - k));
      Lanes x[kLanes];
      for (int r = 0; r < kLanes; ++r) {
        if (r >= have) {
          x[r] = Lanes{};
        } else if (some == kLanes) {
          if constexpr (kVectorBytes == 64) __builtin_prefetch(src.at(row + r0 + r, k0 + k + kAhead));
          x[r] = src.load(row + r0 + r, k0 + k);
        } else {
          float line[kLanes] = {};
          for (int i = 0; i < some; ++i) line[i] = src.get(row + r0 + r, k0 + k + i);
          std::memcpy(&x[r], line, sizeof line);
        }
      }
      transpose(x);
      float* to = dst + k * R + r0;
      for (int i = 0; i < some; ++i) *reinterpret_cast<Loose*>(to + i * R) = x[i];
    }
  }
}

/// Packs rows [row, row + rows) of an operand, k from k0, into panels of R. Transposed: rows are contiguous
/// along k; otherwise src is (k, rows).
template <int R, class Source>
void pack(float* dst, const Source& src, bool transposed, int64_t row, int64_t rows, int64_t k0,
          int64_t depth) {
  if (transposed) {
    for (int64_t r = 0; r < rows; r += R)
      pack_transposed<R>(dst + r * depth, src, row + r, std::min<int64_t>(R, rows - r), k0, depth);
    return;
  }
  constexpr int64_t kTogether = 8;  // rows of src that are read together
  for (int64_t k = 0; k < depth; k += kTogether)
    for (int64_t r = 0; r < rows; r += R)
      for (int64_t j = k; j < std::min(depth, k + kTogether); ++j) {
        float* to = dst + r * depth + j * R;
        if (rows - r < up_to_multiple(R, kLanes)) {  // a vector would reach beyond the row
          const int have = static_cast<int>(std::min<int64_t>(R, rows - r));
          for (int i = 0; i < have; ++i) to[i] = src.get(k0 + j, row + r + i);
          for (int i = have; i < R; ++i) to[i] = 0;
          continue;
        }
#pragma GCC unroll 4
        for (int i = 0; i < R; i += kLanes) {
          const Lanes x = src.load(k0 + j, row + r + i);
          // Elements beyond this row are overwritten by the next one, except after the last row.
          if (R - i >= kLanes || j + 1 < depth) {
            *reinterpret_cast<Loose*>(to + i) = x;
          } else {
            std::memcpy(to + i, &x, (R % kLanes) * sizeof(float));
          }
        }
      }
}

template <int R, int V>
using Sums = Lanes[R][V];

/// c (R rows, V full vectors) = [c +] acc [+ bias].
template <int R, int V>
inline void store(const Sums<R, V>& acc, float* c, int64_t ldc, bool add, const float* bias) {
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      Loose* to = reinterpret_cast<Loose*>(c + r * ldc + v * kLanes);
      Lanes sum = acc[r][v];
      if (add) sum += *to;
      if (bias) sum += *reinterpret_cast<const Loose*>(bias + v * kLanes);
      *to = sum;
    }
}

template <int R, int V>
inline void clear(Sums<R, V>& acc, float* c, int64_t ldc) {
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      __builtin_prefetch(c + r * ldc + v * kLanes, 1);
      acc[r][v] = Lanes{};
    }
}

/// Loads one k of a panel of b and prefetches a later one.
template <int V>
inline void load_columns(Lanes (&to)[V], const float* b) {
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    to[v] = *reinterpret_cast<const Lanes*>(b + v * kLanes);
    __builtin_prefetch(b + kSumsAhead * kPanelCols + v * kLanes);
  }
}

/// c (R rows, V full vectors) = [c +] a b [+ bias] for panels a and b.
struct Plain {
  template <int R, int V>
  static void tile(int64_t depth, const float* a, const float* b, float* c, int64_t ldc, bool add,
                   const float* bias) {
    Sums<R, V> acc;
    clear<R, V>(acc, c, ldc);
    for (int64_t k = 0; k < depth; ++k) {
      Lanes bv[V];
      load_columns<V>(bv, b + k * kPanelCols);
#pragma GCC unroll 14
      for (int r = 0; r < R; ++r) {
        const float x = a[k * kPanelRows + r];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) acc[r][v] += x * bv[v];
      }
    }
    store<R, V>(acc, c, ldc, add, bias);
  }
};

#if defined(__AVX512F__)
/// Plain::tile for panels of pairs.
struct Pairs {
  template <int R, int V>
  __attribute__((target("avx512bf16"))) static void tile(int64_t depth, const float* a, const float* b,
                                                         float* c, int64_t ldc, bool add, const float* bias) {
    Sums<R, V> acc;
    clear<R, V>(acc, c, ldc);
    for (int64_t k = 0; k < depth; ++k) {
      Lanes bv[V];
      load_columns<V>(bv, b + k * kPanelCols);
#pragma GCC unroll 14
      for (int r = 0; r < R; ++r) {
        const __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_ps(a[k * kPanelRows + r]));
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v)
          acc[r][v] = reinterpret_cast<Lanes>(
              _mm512_dpbf16_ps(reinterpret_cast<__m512>(acc[r][v]), x, reinterpret_cast<__m512bh>(bv[v])));
      }
    }
    store<R, V>(acc, c, ldc, add, bias);
  }
};
#else
using Pairs = Plain;           // never used: bf16_matmul()
#endif

template <class K, int R, int V>
void tile_of(int rows, int64_t depth, const float* a, const float* b, float* c, int64_t ldc, bool add,
             const float* bias) {
  if (rows == R) return K::template tile<R, V>(depth, a, b, c, ldc, add, bias);
  if constexpr (R > 1) tile_of<K, R - 1, V>(rows, depth, a, b, c, ldc, add, bias);
}

/// A tile at an edge: `cols` may be smaller than the tile.
template <class K>
void tile_at(int rows, int64_t cols, int64_t depth, const float* a, const float* b, float* c, int64_t ldc,
             bool add, const float* bias) {
  if (cols >= kPanelCols) return tile_of<K, kPanelRows, kPanelVectors>(rows, depth, a, b, c, ldc, add, bias);
  float whole[kPanelRows * kPanelCols];
  if (cols <= kLanes) {
    tile_of<K, kPanelRows, 1>(rows, depth, a, b, whole, kPanelCols, false, nullptr);
  } else {
    tile_of<K, kPanelRows, kPanelVectors>(rows, depth, a, b, whole, kPanelCols, false, nullptr);
  }
  for (int r = 0; r < rows; ++r)
    for (int64_t j = 0; j < cols; ++j) {
      float sum = whole[r * kPanelCols + j];
      if (add) sum += c[r * ldc + j];
      if (bias) sum += bias[j];
      c[r * ldc + j] = sum;
    }
}

/// Rows of a and columns of b of the output part that one thread computes.
struct Part {
  int64_t row, rows, col, cols;
};

/// Range [begin, end) of part i of `parts` over `size`, in full tiles.
inline std::array<int64_t, 2> cut(int64_t size, int64_t tile, int64_t i, int64_t parts) {
  const int64_t tiles = (size + tile - 1) / tile;
  return {std::min(size, tiles * i / parts * tile), std::min(size, tiles * (i + 1) / parts * tile)};
}

/// c of a part (+)= a b [+ bias]. `c` points at the part's first element, `bias` at column 0. k: depth, in
/// pairs if a and b are. panel_a, panel_b: buffers of pack_bytes.
template <class A, class B>
void gemm(float* c, int64_t ldc, const A& a, bool a_transposed, const B& b, bool b_transposed,
          const float* bias, const Part& part, int64_t k, bool accumulate, float* panel_a, float* panel_b) {
  using Kernel = std::conditional_t<A::kPairs, Pairs, Plain>;
  const int64_t depth_of_block = pack_depth(k);
  for (int64_t j0 = 0; j0 < part.cols; j0 += kColBlock)
    for (int64_t k0 = 0; k0 < k; k0 += depth_of_block) {
      const int64_t cols = std::min(kColBlock, part.cols - j0), depth = std::min(depth_of_block, k - k0);
      const float* bias_here = k0 == 0 && bias ? bias + part.col + j0 : nullptr;
      pack<kPanelCols>(panel_b, b, b_transposed, part.col + j0, cols, k0, depth);
      for (int64_t i0 = 0; i0 < part.rows; i0 += kRowBlock) {
        const int64_t rows = std::min(kRowBlock, part.rows - i0);
        pack<kPanelRows>(panel_a, a, a_transposed, part.row + i0, rows, k0, depth);
        for (int64_t j = 0; j < cols; j += kPanelCols)
          for (int64_t i = 0; i < rows; i += kPanelRows)
            tile_at<Kernel>(static_cast<int>(std::min<int64_t>(kPanelRows, rows - i)), cols - j, depth,
                            panel_a + i * depth, panel_b + j * depth, c + (i0 + i) * ldc + j0 + j, ldc,
                            accumulate || k0 > 0, bias_here ? bias_here + j : nullptr);
      }
    }
}

}  // namespace
}  // namespace packed
}  // namespace ltrain::LT_ISA
