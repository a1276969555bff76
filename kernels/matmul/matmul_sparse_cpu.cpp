// Nonzeros of b are collected by column, each with the offset of its row of a in the L1 cache. While the
// nonzeros of a column are multiplied, the column's sums of kRows rows stay in registers. A nonzero takes one
// broadcast and kVectors multiply-adds that read a from memory: with one 64-byte load per cycle, half of the
// values take at least 9/16 of the time of all.
#include "kernels/matmul/matmul_sparse.h"

#include "kernels/matmul/packed_gemm_cpu.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

using namespace packed;

constexpr int kVectors = 8;                   // sums in registers, in vectors
constexpr int64_t kRows = kVectors * kLanes;  // rows of a that are multiplied together
static_assert(kRows <= kSparseRows && kSparseDepth * kRows * 4 <= 1 << 16, "offsets have 16 bits");

/// Nonzeros of a block of b, ordered by blocks of kSparseDepth along k, then by column, then by k.
struct Nonzeros {
  float* values;
  uint16_t* offsets;  // in bytes, of the value's row of a within its block of k
  uint8_t* counts;    // nonzeros per block of k and column
};

/// Appends the nonzeros of from[0, depth), and returns their number.
int append_nonzeros(const float* from, int depth, float* values, uint16_t* offsets) {
  int count = 0;
#if defined(__AVX512F__)
  const __m512i step = _mm512_set1_epi32(static_cast<int>(kRows * 4));
  __m512i at =
      _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), step);
  for (int i = 0; i < depth; i += 16) {
    const auto valid = static_cast<__mmask16>(depth - i >= 16 ? 0xffff : (1 << (depth - i)) - 1);
    const __m512 x = _mm512_maskz_loadu_ps(valid, from + i);
    const __mmask16 other = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    _mm512_storeu_ps(values + count, _mm512_maskz_compress_ps(other, x));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(offsets + count),
                        _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(other, at)));
    count += __builtin_popcount(other);
    at = _mm512_add_epi32(at, _mm512_slli_epi32(step, 4));
  }
#else
  for (int i = 0; i < depth; ++i) {
    values[count] = from[i];
    offsets[count] = static_cast<uint16_t>(i * kRows * 4);
    count += from[i] != 0;
  }
#endif
  return count;
}

/// Copies columns [col, col + cols) of b, k from k0 on, as rows of kSparseDepth values.
void transpose_columns(float* to, const SparseProduct& p, int64_t col, int64_t cols, int64_t k0,
                       int64_t depth) {
  const auto at = [&](int64_t k, int64_t j) { return p.b + (k0 + k) * p.n + col + j; };
  int64_t done = 0;  // columns copied as squares
  for (; depth % kLanes == 0 && done + kLanes <= cols; done += kLanes)
    for (int64_t k = 0; k < depth; k += kLanes) {
      Lanes x[kLanes];
      for (int l = 0; l < kLanes; ++l) x[l] = *reinterpret_cast<const Loose*>(at(k + l, done));
      transpose(x);
      for (int l = 0; l < kLanes; ++l) *reinterpret_cast<Lanes*>(to + (done + l) * kSparseDepth + k) = x[l];
    }
  for (int64_t j = done; j < cols; ++j)
    for (int64_t k = 0; k < depth; ++k) to[j * kSparseDepth + k] = *at(k, j);
}

/// Collects the nonzeros of columns [col, col + cols) of op(b), k in [k0, k0 + depth).
void collect_block(const Nonzeros& to, const SparseProduct& p, int64_t col, int64_t cols, int64_t k0,
                   int64_t depth) {
  constexpr int64_t kColumns = 16;
  alignas(64) float columns[kColumns * kSparseDepth];
  int64_t at = 0;
  uint8_t* counts = to.counts;
  for (int64_t k = 0; k < depth; k += kSparseDepth) {
    const auto some = static_cast<int>(std::min(kSparseDepth, depth - k));
    for (int64_t j = 0; j < cols; ++j) {
      const float* from = p.b + (col + j) * p.k + k0 + k;
      if (!p.trans_b) {
        if (j % kColumns == 0)
          transpose_columns(columns, p, col + j, std::min(kColumns, cols - j), k0 + k, some);
        from = columns + j % kColumns * kSparseDepth;
      }
      const int count = append_nonzeros(from, some, to.values + at, to.offsets + at);
      *counts++ = static_cast<uint8_t>(count);
      at += count;
    }
  }
}

/// sums (cols, kRows) = [sums +] the nonzeros of one block of k times rows of a, for V vectors of rows.
/// Returns the number of nonzeros.
template <int V>
int64_t multiply(float* sums, const float* rows, const float* values, const uint16_t* offsets,
                 const uint8_t* counts, int64_t cols, bool first) {
  int64_t at = 0;
  for (int64_t j = 0; j < cols; ++j, sums += kRows) {
    Lanes acc[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[v] = first ? Lanes{} : *reinterpret_cast<const Lanes*>(sums + v * kLanes);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) __builtin_prefetch(sums + 2 * kRows + v * kLanes, 1);
    __builtin_prefetch(values + at + 256);
    __builtin_prefetch(offsets + at + 256);
    for (const int64_t end = at + counts[j]; at < end; ++at) {
      const float x = values[at];
      const float* row = reinterpret_cast<const float*>(reinterpret_cast<const char*>(rows) + offsets[at]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[v] += x * *reinterpret_cast<const Lanes*>(row + v * kLanes);
    }
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) *reinterpret_cast<Lanes*>(sums + v * kLanes) = acc[v];
  }
  return at;
}

template <int V = kVectors>
int64_t multiply_vectors(int64_t vectors, float* sums, const float* rows, const float* values,
                         const uint16_t* offsets, const uint8_t* counts, int64_t cols, bool first) {
  if (vectors == V) return multiply<V>(sums, rows, values, offsets, counts, cols, first);
  if constexpr (V > 1)
    return multiply_vectors<V - 1>(vectors, sums, rows, values, offsets, counts, cols, first);
  return 0;
}

/// c (rows, cols), `ldc` from row to row = [c +] sums^T [+ bias].
void store_transposed(float* c, int64_t ldc, const float* sums, int64_t rows, int64_t cols, bool add,
                      const float* bias) {
  for (int64_t i = 0; i < rows; i += kLanes)
    for (int64_t j = 0; j < cols; j += kLanes) {
      Lanes x[kLanes];
      for (int l = 0; l < kLanes; ++l)
        x[l] = j + l < cols ? *reinterpret_cast<const Lanes*>(sums + (j + l) * kRows + i) : Lanes{};
      transpose(x);
      for (int64_t r = 0; r < std::min<int64_t>(kLanes, rows - i); ++r) {
        float* to = c + (i + r) * ldc + j;
        if (j + kLanes <= cols) {
          Lanes sum = x[r];
          if (add) sum += *reinterpret_cast<const Loose*>(to);
          if (bias) sum += *reinterpret_cast<const Loose*>(bias + j);
          *reinterpret_cast<Loose*>(to) = sum;
          continue;
        }
        for (int64_t l = 0; j + l < cols; ++l) {
          float sum = x[r][l];
          if (add) sum += to[l];
          if (bias) sum += bias[j + l];
          to[l] = sum;
        }
      }
    }
}

/// c (cols, rows), `ldc` from row to row = [c +] sums.
void store_rows(float* c, int64_t ldc, const float* sums, int64_t rows, int64_t cols, bool add) {
  for (int64_t j = 0; j < cols; ++j, c += ldc, sums += kRows) {
    int64_t i = 0;
    for (; i + kLanes <= rows; i += kLanes) {
      Lanes sum = *reinterpret_cast<const Lanes*>(sums + i);
      if (add) sum += *reinterpret_cast<const Loose*>(c + i);
      *reinterpret_cast<Loose*>(c + i) = sum;
    }
    for (; i < rows; ++i) c[i] = add ? sums[i] + c[i] : sums[i];
  }
}

/// Computes a part of the output. Sums start and are added at the same blocks of k as in matmul_packed.
void compute(const SparseProduct& p, const Part& part) {
  const auto bytes = sparse_pack_bytes(p.n, p.k);
  const int64_t whole_depth = pack_depth(p.k), most = std::min(kSparseCols, up_to_multiple(p.n, 16));
  float* rows_of_a = static_cast<float*>(thread_scratch(0, bytes[0]));
  float* values = static_cast<float*>(thread_scratch(1, bytes[1]));
  float* sums = static_cast<float*>(thread_scratch(2, bytes[2]));
  auto* offsets =
      reinterpret_cast<uint16_t*>(reinterpret_cast<char*>(values) + most * whole_depth * 4 + kPackOver);
  auto* counts = reinterpret_cast<uint8_t*>(offsets) + most * whole_depth * 2 + kPackOver;
  const Matrix<float> a{p.a, p.gradient ? p.m : p.k};
  for (int64_t j0 = 0; j0 < part.cols; j0 += kSparseCols)
    for (int64_t k0 = 0; k0 < p.k; k0 += whole_depth) {
      const int64_t cols = std::min(kSparseCols, part.cols - j0), depth = std::min(whole_depth, p.k - k0);
      collect_block({values, offsets, counts}, p, part.col + j0, cols, k0, depth);
      for (int64_t i0 = 0; i0 < part.rows; i0 += kRows) {
        const int64_t rows = std::min(kRows, part.rows - i0);
        pack<kRows>(rows_of_a, a, !p.gradient, part.row + i0, rows, k0, depth);
        int64_t at = 0, block = 0;
        for (int64_t k = 0; k < depth; k += kSparseDepth, ++block)
          at += multiply_vectors((rows + kLanes - 1) / kLanes, sums, rows_of_a + k * kRows, values + at,
                                 offsets + at, counts + block * cols, cols, k == 0);
        const int64_t row = part.row + i0, col = part.col + j0;
        const bool add = p.accumulate || k0 > 0;
        if (p.gradient)
          store_rows(p.out + col * p.m + row, p.m, sums, rows, cols, add);
        else
          store_transposed(p.out + row * p.n + col, p.n, sums, rows, cols, add,
                           k0 == 0 && p.bias ? p.bias + col : nullptr);
      }
    }
}

}  // namespace

void matmul_sparse_cpu(const SparseProduct& p) {
  constexpr int64_t kWorthCols = 128;  // columns of b that pay for a thread
  const int64_t threads = omp_get_max_threads();
  const int64_t by_cols = std::clamp<int64_t>(p.n / kWorthCols, 1, threads);
  const int64_t by_rows = std::clamp<int64_t>(p.m / kRows, 1, threads / by_cols);
  parallel_for(by_rows * by_cols, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto r = cut(p.m, kRows, t / by_cols, by_rows), c = cut(p.n, kLanes, t % by_cols, by_cols);
      compute(p, {r[0], r[1] - r[0], c[0], c[1] - c[0]});
    }
  });
}

}  // namespace ltrain::LT_ISA
