#include "kernels/optimizer/sophia.h"

#include <algorithm>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

/// Calls f(i, sign) for the elements of [begin, end), by rows, within which indices are consecutive.
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
void estimate(A* h, const A* g, const A* shifted, int64_t n, const EstimateFactors<A>& f, uint64_t seed,
              uint64_t stream, const BoxElements& e) {
  parallel_for(n, 4096, [=](int64_t begin, int64_t end) {
    each_sign<A>(e, begin, end, seed, stream, [=](int64_t i, A u) { f.add(h[i], u * (shifted[i] - g[i])); });
  });
}

template <class A>
void square(A* h, const A* g, int64_t n, const EstimateFactors<A>& f) {
  parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
    A* __restrict hp = h;
    const A* __restrict gp = g;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) f.add_square(hp[i], gp[i]);
  });
}

template <class A, class L>
void update(A* w, A* m, const A* h, const A* g, L* low, int64_t n, const SophiaFactors<A>& f) {
  parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
    A* __restrict wp = w, * __restrict mp = m;
    const A* __restrict hp = h, * __restrict gp = g;
    L* __restrict lp = low;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) f.step(wp[i], mp[i], hp[i], gp[i]);
    if (!lp) return;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) put(lp, i, static_cast<float>(wp[i]));
  });
}

}  // namespace

void add_signs_cpu(DType t, void* y, double factor, int64_t n, uint64_t seed, uint64_t stream,
                   BoxElements elements) {
  dispatch_wide(t, [&]<class A>() { add(static_cast<A*>(y), A(factor), n, seed, stream, elements); });
}

void hutchinson_estimate_cpu(DType t, void* hessian, const void* grad, const void* shifted, int64_t n,
                             double beta2, double radius, uint64_t seed, uint64_t stream,
                             BoxElements elements) {
  dispatch_wide(t, [&]<class A>() {
    estimate(static_cast<A*>(hessian), static_cast<const A*>(grad), static_cast<const A*>(shifted), n,
             EstimateFactors<A>(beta2, 1.0 / radius), seed, stream, elements);
  });
}

void gauss_newton_estimate_cpu(DType t, void* hessian, const void* grad, int64_t n, double beta2,
                               double factor) {
  dispatch_wide(t, [&]<class A>() {
    square(static_cast<A*>(hessian), static_cast<const A*>(grad), n, EstimateFactors<A>(beta2, factor));
  });
}

void sophia_cpu(DType t, void* master, void* exp_avg, const void* hessian, const void* grad, DType low_type,
                void* low, int64_t n, bool decay, OptimizerStep args, double gamma) {
  dispatch_half(low_type, [&]<class L>() {
    dispatch_wide(t, [&]<class A>() {
      update(static_cast<A*>(master), static_cast<A*>(exp_avg), static_cast<const A*>(hessian),
             static_cast<const A*>(grad), static_cast<L*>(low), n, SophiaFactors<A>(args, gamma, decay));
    });
  });
}

}  // namespace ltrain::LT_ISA
