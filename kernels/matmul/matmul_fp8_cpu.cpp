#include "kernels/matmul/matmul_fp8.h"

#include <algorithm>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

/// A panel of code * step, which is exact, contiguous.
template <class F>
void dequantize(const Fp8Operand& x, F* to, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  const int64_t stride = x.codes.shape[1];
  const uint8_t* codes = static_cast<const uint8_t*>(x.codes.data);
  const float* steps = static_cast<const float*>(x.steps.data);
  dispatch_fp8(x.codes.dtype, [&]<class E>() {
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const uint8_t* from = codes + (row + r) * stride + col;
        F* line = to + r * cols;
        const int64_t steps_cols = x.steps.shape[-1];
        for (int64_t c = 0, next; c < cols; c = next) {
          next = x.block_rows ? std::min(cols, (col + c) / kFp8Block * kFp8Block + kFp8Block - col) : cols;
          const float step =
              x.block_rows ? steps[(row + r) / x.block_rows * steps_cols + (col + c) / kFp8Block] : *steps;
#pragma omp simd
          for (int64_t j = c; j < next; ++j) line[j] = E::from(from[j]) * step;
        }
      }
    });
  });
}

}  // namespace

void dequantize_panel_cpu(const Fp8Operand& x, float* to, int64_t row, int64_t rows, int64_t col,
                          int64_t cols) {
  dequantize(x, to, row, rows, col, cols);
}
void dequantize_wide_cpu(const Fp8Operand& x, double* to) {
  dequantize(x, to, 0, x.codes.shape[0], 0, x.codes.shape[1]);
}

}  // namespace ltrain::LT_ISA
