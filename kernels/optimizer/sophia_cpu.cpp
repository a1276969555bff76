#include "kernels/optimizer/sophia.h"

#include <algorithm>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

/// f(i, sign) for the elements of [begin, end): by rows, in which indices are consecutive.
template <class A, class F>
void each_sign(const BoxElements& e, int64_t begin, int64_t end, uint64_t seed, uint64_t stream, F f) {
  const int64_t row = e.extent[e.rank - 1];
  Philox4 random{};
  int64_t have = -1;
  for (int64_t i = begin, next; i < end; i = next) {
    next = std::min(end, i + row - (e.begin + i) % row);
    const int64_t at = e.index(i);
    for (int64_t j = i; j < next; ++j) {
      const int64_t index = at + j - i, call = index / kSignsOfCall;
      if (call != have) random = philox(seed, stream, static_cast<uint64_t>(have = call));
      f(j, sign_bit(random, index) ? A(1) : A(-1));
    }
  }
}

template <class A>
void add(A* y, A factor, int64_t n, uint64_t seed, uint64_t stream, const BoxElements& e) {
  parallel_for(n, 4096, [=](int64_t begin, int64_t end) {
    each_sign<A>(e, begin, end, seed, stream, [=](int64_t i, A u) { y[i] += factor * u; });
  });
}

template <class A>
void update(A* w, A* m, A* h, const A* g, const A* shifted, int64_t n, const SophiaFactors<A>& f,
            uint64_t seed, uint64_t stream, const BoxElements& e) {
  parallel_for(n, 4096, [=](int64_t begin, int64_t end) {
    if (shifted) {
      each_sign<A>(e, begin, end, seed, stream,
                   [=](int64_t i, A u) { f.step(w[i], m[i], h[i], g[i], u * (shifted[i] - g[i]) * f.over); });
      return;
    }
    A* __restrict wp = w, * __restrict mp = m, * __restrict hp = h;
    const A* __restrict gp = g;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) f.step(wp[i], mp[i], hp[i], gp[i], A(0));
  });
}

}  // namespace

void add_signs_cpu(DType t, void* y, double factor, int64_t n, uint64_t seed, uint64_t stream,
                   BoxElements elements) {
  if (t == DType::f64)
    add(static_cast<double*>(y), factor, n, seed, stream, elements);
  else
    add(static_cast<float*>(y), static_cast<float>(factor), n, seed, stream, elements);
}

void sophia_cpu(DType t, void* master, void* exp_avg, void* hessian, const void* grad, const void* shifted,
                int64_t n, bool decay, SophiaArgs args, uint64_t seed, uint64_t stream,
                BoxElements elements) {
  const auto run = [&]<class A>() {
    update(static_cast<A*>(master), static_cast<A*>(exp_avg), static_cast<A*>(hessian),
           static_cast<const A*>(grad), static_cast<const A*>(shifted), n,
           SophiaFactors<A>(args, decay, shifted != nullptr), seed, stream, elements);
  };
  dispatch_wide(t, run);
}

}  // namespace ltrain::LT_ISA
