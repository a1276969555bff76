#include "kernels/elementwise/scale_add.h"

#include <algorithm>
#include <cmath>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

template <class A>
void run(A* y, A a, const A* x, A b, int64_t n) {
  parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
    A* __restrict yp = y;
    const A* __restrict xp = x;
    if (xp) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) yp[i] = a * yp[i] + b * xp[i];
    } else {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) yp[i] = a * yp[i];
    }
  });
}

}  // namespace

void scale_add_cpu(DType t, void* y, double a, const void* x, double b, const double* squares, double eps,
                   int64_t n) {
  if (squares) a /= std::max(std::sqrt(*squares), eps);
  if (t == DType::f64)
    run(static_cast<double*>(y), a, static_cast<const double*>(x), b, n);
  else
    run(static_cast<float*>(y), static_cast<float>(a), static_cast<const float*>(x), static_cast<float>(b),
        n);
}

}  // namespace ltrain::LT_ISA
