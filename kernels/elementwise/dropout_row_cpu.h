// One row of dropout, shared by the kernels that fuse it. Only for *_cpu.cpp files.
#pragma once
#include "kernels/elementwise/dropout.h"
#include "kernels/tensor/dtype.h"

namespace ltrain::LT_ISA {
namespace {

/// factor[c] = 0 or 1/(1-p) for this rank's channels 0..cols-1 of row `row`.
template <class A>
inline void dropout_row(A* factor, int64_t row, int64_t cols, const DropoutArgs& d) {
  const int64_t begin = d.part * cols, end = begin + cols;
  const uint64_t first = d.call(row, cols);
  for (int64_t i = begin / 4; i * 4 < end; ++i) {
    const Philox4 r = philox(d.seed, d.stream, first + static_cast<uint64_t>(i));
    for (int64_t j = 0; j < 4; ++j)
      if (const int64_t c = i * 4 + j; c >= begin && c < end)
        factor[c - begin] = r.v[j] >= d.threshold ? A(d.scale) : A(0);
  }
}

}  // namespace
}  // namespace ltrain::LT_ISA
