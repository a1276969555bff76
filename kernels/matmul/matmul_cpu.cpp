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

}  // namespace ltrain::LT_ISA
