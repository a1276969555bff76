#include "kernels/matmul/matmul.h"
#include "kernels/tensor/micro_gemm.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void matmul_f64_cpu(double* out, const double* a, const double* b, const double* bias, int64_t m, int64_t n,
                    int64_t k, bool trans_a, bool trans_b, bool accumulate) {
  constexpr int64_t kRows = 60, kCols = 128, kDepth = 256;
  const int64_t row_blocks = (m + kRows - 1) / kRows, col_blocks = (n + kCols - 1) / kCols;
  const int64_t a_row = trans_a ? 1 : k, a_col = trans_a ? m : 1;
  parallel_for(row_blocks * col_blocks, 1, [&](int64_t begin, int64_t end) {
    double* packed = scratch<double>(0, kDepth * kCols);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t i0 = block / col_blocks * kRows, j0 = block % col_blocks * kCols;
      const int64_t rows = std::min(kRows, m - i0), cols = std::min(kCols, n - j0);
      for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
        const int64_t depth = std::min(kDepth, k - k0);
        for (int64_t kk = 0; kk < depth; ++kk)
          for (int64_t j = 0; j < cols; ++j)
            packed[kk * kCols + j] = trans_b ? b[(j0 + j) * k + k0 + kk] : b[(k0 + kk) * n + j0 + j];
        micro_gemm(rows, cols, depth, a + i0 * a_row + k0 * a_col, a_row, a_col, packed, kCols,
                   out + i0 * n + j0, n, accumulate || k0 > 0);
      }
      if (bias)
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < cols; ++j) out[(i0 + i) * n + j0 + j] += bias[j0 + j];
    }
  });
}

/// to (rows, cols) contiguous = from with rows `stride` apart.
void widen_panel_cpu(DType t, float* to, const void* from, int64_t rows, int64_t cols, int64_t stride) {
  dispatch_half(t, [&]<class T>() {
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      const T* x = static_cast<const T*>(from);
      for (int64_t r = begin; r < end; ++r)
        for (int64_t c = 0; c < cols; ++c) to[r * cols + c] = get(x, r * stride + c);
    });
  });
}

/// The same of f32, rounded to 10 bits after the point: to nearest, ties to even; NaN stays NaN.
void round_panel_cpu(float* to, const float* from, int64_t rows, int64_t cols, int64_t stride) {
  parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        uint32_t u;
        std::memcpy(&u, from + r * stride + c, 4);
        const uint32_t rounded = (u + 0xfffu + ((u >> 13) & 1u)) & ~0x1fffu;
        const uint32_t kept = (u & 0x7fffffffu) > 0x7f800000u ? u : rounded;
        std::memcpy(to + r * cols + c, &kept, 4);
      }
  });
}

/// to, rows `stride` apart, = from (rows, cols) [+ bias], rounded.
void narrow_panel_cpu(DType t, void* to, int64_t stride, const float* from, const void* bias, int64_t rows,
                      int64_t cols) {
  dispatch_half(t, [&]<class T>() {
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      T* y = static_cast<T*>(to);
      const T* b = static_cast<const T*>(bias);
      for (int64_t r = begin; r < end; ++r) {
        if (b) {
          for (int64_t c = 0; c < cols; ++c) put(y, r * stride + c, from[r * cols + c] + get(b, c));
        } else {
          for (int64_t c = 0; c < cols; ++c) put(y, r * stride + c, from[r * cols + c]);
        }
      }
    });
  });
}

}  // namespace ltrain::LT_ISA
