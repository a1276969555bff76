#include "kernels/matmul/matmul_fp8.h"

#include <algorithm>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
/// to = code * step, which is exact.
void dequantize_wide_cpu(const Fp8Operand& x, double* to) {
  const int64_t rows = x.codes.shape[0], cols = x.codes.shape[1], steps_cols = x.steps.shape[-1];
  const uint8_t* codes = static_cast<const uint8_t*>(x.codes.data);
  const float* steps = static_cast<const float*>(x.steps.data);
  dispatch_fp8(x.codes.dtype, [&]<class E>() {
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t c = 0, next; c < cols; c = next) {
          next = x.block_rows ? std::min(cols, (c / kFp8Block + 1) * kFp8Block) : cols;
          const float step = x.block_rows ? steps[r / x.block_rows * steps_cols + c / kFp8Block] : *steps;
#pragma omp simd
          for (int64_t j = c; j < next; ++j) to[r * cols + j] = E::from(codes[r * cols + j]) * step;
        }
    });
  });
}

}  // namespace ltrain::LT_ISA
