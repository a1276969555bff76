#include "kernels/elementwise/swiglu_row_cpu.h"
#include "kernels/matmul/quantize_row_cpu.h"
#include "kernels/matmul/swiglu_fp8.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void swiglu_forward_fp8_cpu(DType t, void* codes, void* transposed, const float* step, float* amax,
                            const void* gate_up, int64_t rows, int64_t cols) {
  const float inverse = 1.0f / *step;
  dispatch_float(t, [&]<class T>() {
    parallel_for(rows, 4, [&](int64_t begin, int64_t end) {
      T* y = scratch<T>(0, cols);
      uint32_t most = 0;
      for (int64_t row = begin; row < end; ++row) {
        swiglu_row(y, static_cast<const T*>(gate_up) + row * 2 * cols, cols);
        encode<E4m3>(static_cast<uint8_t*>(codes) + row * cols, y, cols, inverse);
        if (amax) most = std::max(most, largest(y, cols));
      }
      if (amax) raise(amax, most);
    });
  });
  if (transposed) turn_codes_cpu(transposed, codes, rows, cols);
}

void swiglu_backward_fp8_cpu(DType to, DType t, void* codes, void* transposed, const float* step, float* amax,
                             const void* dy, const void* gate_up, int64_t rows, int64_t cols) {
  const float inverse = 1.0f / *step;
  dispatch_fp8(to, [&]<class E>() {
    dispatch_float(t, [&]<class T>() {
      parallel_for(rows, 4, [&](int64_t begin, int64_t end) {
        T* gradient = scratch<T>(0, 2 * cols);
        uint32_t most = 0;
        for (int64_t row = begin; row < end; ++row) {
          swiglu_gradient_row(gradient, static_cast<const T*>(dy) + row * cols,
                              static_cast<const T*>(gate_up) + row * 2 * cols, cols);
          encode<E>(static_cast<uint8_t*>(codes) + row * 2 * cols, gradient, 2 * cols, inverse);
          if (amax) most = std::max(most, largest(gradient, 2 * cols));
        }
        if (amax) raise(amax, most);
      });
    });
  });
  turn_codes_cpu(transposed, codes, rows, 2 * cols);
}

}  // namespace ltrain::LT_ISA
