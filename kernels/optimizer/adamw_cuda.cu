#include "kernels/cuda/pack_cuda.h"
#include "kernels/optimizer/adamw.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kChunk = 64 * kThreads;  // elements of a block

/// Limit of a launch's arguments: 32764 bytes from CUDA 12.1 on. The emulated device copies them for each
/// thread.
#if defined(LTRAIN_CUDA_EMULATED) || __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1201
constexpr size_t kArgumentBytes = 4000;
#else
constexpr size_t kArgumentBytes = 32000;
#endif

inline __device__ float root_of(float x) { return sqrtf(x); }
inline __device__ double root_of(double x) { return sqrt(x); }

/// A run of a part: weights and arithmetic in A, moments in M, gradients in G, a copy of the weights in L.
template <class A, class L, class M, class G>
struct Segment {
  A* w;
  M *m, *v;
  const G* g;
  L* low;
  int64_t n;
  unsigned block;  // index of its first block
  bool packs;      // elements are aligned for packs
  AdamwFactors<A> factors;
};

/// Segments of one launch.
template <class A, class L, class M, class G>
struct Segments {
  static constexpr int kMost = static_cast<int>(kArgumentBytes / sizeof(Segment<A, L, M, G>));
  int count = 0;
  Segment<A, L, M, G> of[kMost];
};

template <int N, bool kLow, class A, class L, class M, class G>
__device__ __forceinline__ void update_pack(const Segment<A, L, M, G>& s, int64_t i) {
  const AdamwFactors<A>& f = s.factors;
  auto wp = load<A, N>(s.w, i);
  auto mp = load<M, N>(s.m, i), vp = load<M, N>(s.v, i);
  const auto gp = load<G, N>(s.g, i);
  Pack<L, N> lp;
  for (int j = 0; j < N; ++j) {
    const A grad = f.gradient(A(get(gp.v, j)), wp.v[j]);
    const A m = f.first(A(get(mp.v, j)), grad);
    const A v = f.second(A(get(vp.v, j)), grad);
    put(mp.v, j, m);
    put(vp.v, j, v);
    wp.v[j] = f.weight(wp.v[j], m, root_of(v));
    if (kLow) put(lp.v, j, static_cast<float>(wp.v[j]));
  }
  store(s.w, i, wp);
  store(s.m, i, mp);
  store(s.v, i, vp);
  if (kLow) store(s.low, i, lp);
}

/// One block for each chunk of a segment.
template <class A, class L, class M, class G, bool kLow>
__global__ void update(const __grid_constant__ Segments<A, L, M, G> all) {
  constexpr int N = kPackOf<A>;
  int at = 0;
  for (int end = all.count; end - at > 1;) {
    const int middle = (at + end) / 2;
    (blockIdx.x >= all.of[middle].block ? at : end) = middle;
  }
  const Segment<A, L, M, G>& s = all.of[at];
  const int64_t begin = int64_t{blockIdx.x - s.block} * kChunk;
  const int n = static_cast<int>(s.n - begin < kChunk ? s.n - begin : kChunk);
  const int whole = s.packs ? n / N * N : 0;
  for (int i = threadIdx.x * N; i < whole; i += kThreads * N) update_pack<N, kLow>(s, begin + i);
  for (int i = whole + threadIdx.x; i < n; i += kThreads) update_pack<1, kLow>(s, begin + i);
}

template <class A, class L, class M, class G>
void run(Stream& s, const std::vector<AdamwSpan>& spans) {
  Segments<A, L, M, G> some;
  unsigned blocks = 0;
  const auto flush = [&] {
    if (some.count == 0) return;
    launch(s, dim3(blocks), kThreads, 0,
           some.of[0].low ? update<A, L, M, G, true> : update<A, L, M, G, false>, some);
    some.count = 0;
    blocks = 0;
  };
  for (const AdamwSpan& span : spans) {
    int64_t begin = 0;
    for (const AdamwRun& r : span.runs) {
      if (some.count == Segments<A, L, M, G>::kMost) flush();
      Segment<A, L, M, G>& to = some.of[some.count++];
      to.w = static_cast<A*>(span.master) + begin;
      to.m = static_cast<M*>(span.exp_avg) + begin;
      to.v = static_cast<M*>(span.exp_avg_sq) + begin;
      to.g = static_cast<const G*>(span.grad) + begin;
      to.low = span.low ? static_cast<L*>(span.low) + begin : nullptr;
      to.n = r.end - begin;
      to.block = blocks;
      const auto begins_pack = [](const auto* p) {
        return reinterpret_cast<uintptr_t>(p) % (kPackOf<A> * sizeof(*p)) == 0;
      };
      to.packs = begins_pack(to.w) && begins_pack(to.m) && begins_pack(to.v) && begins_pack(to.g) &&
                 begins_pack(to.low);
      to.factors = AdamwFactors<A>(r.args, r.decay);
      blocks += static_cast<unsigned>((to.n + kChunk - 1) / kChunk);
      begin = r.end;
    }
  }
  flush();
}

}  // namespace
}  // namespace cuda

void adamw_cuda(Stream& s, AdamwTypes types, std::vector<AdamwSpan> spans) {
  dispatch_half(types.low, [&]<class L>() {
    dispatch_wide(types.master, [&]<class A>() {
      dispatch_beside<A>(types.moment, [&]<class M>() {
        dispatch_beside<A>(types.grad, [&]<class G>() { cuda::run<A, L, M, G>(s, spans); });
      });
    });
  });
}

}  // namespace ltrain
