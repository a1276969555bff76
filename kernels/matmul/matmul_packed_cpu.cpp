#include "kernels/matmul/matmul_packed.h"

#include "kernels/matmul/packed_gemm_cpu.h"
#include "kernels/matmul/quantize.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

using namespace packed;

/// Codes and their steps. A load stays within one block of kFp8Block: blocks of k are multiples of 16.
template <class E>
struct Fp8Matrix {
  static constexpr bool kFp8 = true, kPairs = false;
  const uint8_t* data;
  int64_t stride;
  const float* steps;
  int64_t block_rows, steps_cols;

  const uint8_t* at(int64_t row, int64_t col) const { return data + row * stride + col; }
  float step(int64_t row, int64_t col) const {
    return block_rows ? steps[row / block_rows * steps_cols + col / kFp8Block] : *steps;
  }
  float get(int64_t row, int64_t col) const { return E::from(*at(row, col)) * step(row, col); }
  Lanes load(int64_t row, int64_t col) const {
    float x[kLanes];
    const uint8_t* from = at(row, col);
#pragma omp simd
    for (int i = 0; i < kLanes; ++i) x[i] = E::from(from[i]);
    Lanes lanes;
    std::memcpy(&lanes, x, sizeof lanes);
    return lanes * step(row, col);
  }
};

/// Calls f with the reader of the operand.
template <class F>
void with_source(const PackedOperand& o, const PackedProduct& p, F&& f) {
  switch (o.dtype) {
    case DType::f32:
      if (p.tf32) return f(Tf32Matrix{static_cast<const float*>(o.data), o.stride});
      return f(Matrix<float>{static_cast<const float*>(o.data), o.stride});
    case DType::bf16:
      if (p.pairs && o.transposed)
        return f(PairMatrix<true>{static_cast<const bf16*>(o.data), o.stride, p.k});
      if (p.pairs) return f(PairMatrix<false>{static_cast<const bf16*>(o.data), o.stride, p.k});
      return f(Matrix<bf16>{static_cast<const bf16*>(o.data), o.stride});
    case DType::f16:
      return f(Matrix<f16>{static_cast<const f16*>(o.data), o.stride});
    default:
      dispatch_fp8(o.dtype, [&]<class E>() {
        f(Fp8Matrix<E>{static_cast<const uint8_t*>(o.data), o.stride, o.steps, o.block_rows, o.steps_cols});
      });
  }
}

/// Numbers of parts along rows and columns, for `threads` threads: the grid with the least time of its
/// largest part. The time of a part is its elements for the tiles plus its sides for packing.
std::array<int64_t, 2> grid_of(int64_t m, int64_t n, int64_t threads) {
  std::array<int64_t, 2> best{1, 1};
  double least = 0;
  for (int64_t by_rows = 1; by_rows <= threads; ++by_rows) {
    const int64_t by_cols = threads / by_rows;
    const int64_t rows = ((m + kPanelRows - 1) / kPanelRows + by_rows - 1) / by_rows * kPanelRows;
    const int64_t cols = ((n + kPanelCols - 1) / kPanelCols + by_cols - 1) / by_cols * kPanelCols;
    // Cycles for each element of k, at two vectors multiplied and one element packed in each cycle.
    const double time = static_cast<double>(rows * cols) / (2 * kLanes) + static_cast<double>(rows + cols);
    if (by_rows == 1 || time < least) least = time, best = {by_rows, by_cols};
  }
  return best;
}

template <class A, class B>
void compute(const PackedProduct& p, const A& a, const B& b, const Part& part) {
  const bool half = is_half(p.out_type);
  const int64_t sums_of_k = pack_sums(p.k, p.pairs);
  const auto bytes = pack_bytes(p.m, p.n, sums_of_k, half);
  float* panel_a = static_cast<float*>(thread_scratch(0, bytes[0]));
  float* panel_b = static_cast<float*>(thread_scratch(1, bytes[1]));
  if (!half) {
    gemm(static_cast<float*>(p.out) + part.row * p.n + part.col, p.n, a, p.a.transposed, b, p.b.transposed,
         static_cast<const float*>(p.bias), part, sums_of_k, p.accumulate, panel_a, panel_b);
    return;
  }
  float* sums = static_cast<float*>(thread_scratch(2, bytes[2]));
  for (int64_t j = 0; j < part.cols; j += kHalfCols)
    for (int64_t i = 0; i < part.rows; i += kHalfRows) {
      const Part some{part.row + i, std::min(kHalfRows, part.rows - i), part.col + j,
                      std::min(kHalfCols, part.cols - j)};
      gemm(sums, some.cols, a, p.a.transposed, b, p.b.transposed, nullptr, some, sums_of_k, false, panel_a,
           panel_b);
      dispatch_half(p.out_type, [&]<class T>() {
        const T* bias = static_cast<const T*>(p.bias);
        for (int64_t r = 0; r < some.rows; ++r) {
          const float* from = sums + r * some.cols;
          T* to = static_cast<T*>(p.out) + (some.row + r) * p.n + some.col;
          if (bias) {
            for (int64_t c = 0; c < some.cols; ++c) put(to, c, from[c] + get(bias, some.col + c));
          } else if (p.accumulate) {
            for (int64_t c = 0; c < some.cols; ++c) put(to, c, from[c] + get(to, c));
          } else {
            for (int64_t c = 0; c < some.cols; ++c) put(to, c, from[c]);
          }
        }
      });
    }
}

}  // namespace

void matmul_packed_cpu(const PackedProduct& p) {
  if constexpr (std::is_same_v<Pairs, Plain>)
    LT_CHECK(!p.pairs, "packed matmul: expected no bf16 pairs without AVX-512, got pairs");
  constexpr double kWorth = 1 << 18;  // multiplications that pay for a thread
  const double worth =
      static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) / kWorth;
  const int64_t threads = std::clamp<int64_t>(static_cast<int64_t>(worth), 1, omp_get_max_threads());
  const auto [by_rows, by_cols] = grid_of(p.m, p.n, threads);
  with_source(p.a, p, [&](const auto& a) {
    const auto multiply = [&](const auto& b) {
      parallel_for(by_rows * by_cols, 1, [&, rows = by_rows, cols = by_cols](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          const auto r = cut(p.m, kPanelRows, t / cols, rows), c = cut(p.n, kPanelCols, t % cols, cols);
          compute(p, a, b, {r[0], r[1] - r[0], c[0], c[1] - c[0]});
        }
      });
    };
    with_source(p.b, p, [&]<class B>(const B& b) {
      using A = std::decay_t<decltype(a)>;
      // Operands have one type, or are both FP8.
      if constexpr (std::is_same_v<A, B> || (A::kFp8 && B::kFp8) || (A::kPairs && B::kPairs)) {
        multiply(b);
      } else {
        fail(ExitCode::internal, "a product of {} and {}", dtype_name(p.a.dtype), dtype_name(p.b.dtype));
      }
    });
  });
}

}  // namespace ltrain::LT_ISA
