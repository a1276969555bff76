#include <numeric>

#include "kernels/cuda/pack_cuda.h"
#include "kernels/optimizer/adamw.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = 256;

inline __device__ float root_of(float x) { return sqrtf(x); }
inline __device__ double root_of(double x) { return sqrt(x); }

/// What one launch takes of them.
constexpr size_t kRuns = 24;
template <class A>
struct Runs {
  int64_t end[kRuns];
  AdamwFactors<A> factors[kRuns];
};

template <class A, class L, int N, bool kLow>
__global__ void update(A* w, A* m, A* v, const A* g, L* low, int64_t packs,
                       const __grid_constant__ Runs<A> runs) {
  int run = 0;
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    while (i * N >= runs.end[run]) ++run;
    const AdamwFactors<A>& f = runs.factors[run];
    auto wp = load<A, N>(w, i * N), mp = load<A, N>(m, i * N), vp = load<A, N>(v, i * N);
    const auto gp = load<A, N>(g, i * N);
    Pack<L, N> lp;
    for (int j = 0; j < N; ++j) {
      const A grad = gp.v[j] * f.scale + f.couple * wp.v[j];
      mp.v[j] = f.beta1 * mp.v[j] + f.one_minus1 * grad;
      vp.v[j] = f.beta2 * vp.v[j] + f.one_minus2 * grad * grad;
      wp.v[j] = wp.v[j] * f.keep - f.step * mp.v[j] / (root_of(vp.v[j]) * f.root + f.eps);
      if (kLow) put(lp.v, j, static_cast<float>(wp.v[j]));
    }
    store(w, i * N, wp);
    store(m, i * N, mp);
    store(v, i * N, vp);
    if (kLow) store(low, i * N, lp);
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void adamw_cuda(Stream& s, DType t, void* master, void* exp_avg, void* exp_avg_sq, const void* grad,
                DType low_type, void* low, std::vector<AdamwRun> runs) {
  const auto run = [&]<class A, class L>() {
    int64_t begin = 0;
    for (size_t first = 0; first < runs.size(); first += kRuns) {
      A *w = static_cast<A*>(master) + begin, *m = static_cast<A*>(exp_avg) + begin,
        *v = static_cast<A*>(exp_avg_sq) + begin;
      const A* g = static_cast<const A*>(grad) + begin;
      L* l = low ? static_cast<L*>(low) + begin : nullptr;
      Runs<A> some{};
      int64_t n = 0, unit = 0;  // that all ends are multiples of
      for (size_t i = 0; i < std::min(kRuns, runs.size() - first); ++i) {
        const AdamwRun& r = runs[first + i];
        some.end[i] = n = r.end - begin;
        some.factors[i] = AdamwFactors<A>(r.args, r.decay);
        unit = std::gcd(unit, n);
      }
      with_pack<A>(unit, {w, m, v, g, l}, [&]<int N>() {
        launch(s, blocks_for(n / N, kThreads), kThreads, 0,
               l ? cuda::update<A, L, N, true> : cuda::update<A, L, N, false>, w, m, v, g, l, n / N, some);
      });
      begin += n;
    }
  };
  dispatch_half(low_type,
                [&]<class L>() { dispatch_wide(t, [&]<class A>() { run.template operator()<A, L>(); }); });
}

}  // namespace ltrain
