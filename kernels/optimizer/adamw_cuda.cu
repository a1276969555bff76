#include "kernels/cuda/pack_cuda.h"
#include "kernels/optimizer/adamw.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 64 * kThreads;  // elements of a block

/// What a launch may take as arguments: 32764 bytes from CUDA 12.1 on. The emulated device copies them for
/// each thread.
#if defined(LTRAIN_CUDA_EMULATED) || __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1201
constexpr size_t kArgumentBytes = 4000;
#else
constexpr size_t kArgumentBytes = 32000;
#endif

inline __device__ float root_of(float x) { return sqrtf(x); }
inline __device__ double root_of(double x) { return sqrt(x); }

/// A run of a part.
template <class A, class L>
struct Segment {
  A *w, *m, *v;
  const A* g;
  L* low;
  int64_t n;
  unsigned block;  // its first one
  bool packs;      // elements begin where packs may
  AdamwFactors<A> factors;
};

/// What one launch takes of them.
template <class A, class L>
struct Segments {
  static constexpr int kMost = static_cast<int>(kArgumentBytes / sizeof(Segment<A, L>));
  int count = 0;
  Segment<A, L> of[kMost];
};

template <int N, bool kLow, class A, class L>
__device__ __forceinline__ void update_pack(const Segment<A, L>& s, int64_t i) {
  const AdamwFactors<A>& f = s.factors;
  auto wp = load<A, N>(s.w, i), mp = load<A, N>(s.m, i), vp = load<A, N>(s.v, i);
  const auto gp = load<A, N>(s.g, i);
  Pack<L, N> lp;
  for (int j = 0; j < N; ++j) {
    const A grad = gp.v[j] * f.scale + f.couple * wp.v[j];
    mp.v[j] = f.beta1 * mp.v[j] + f.one_minus1 * grad;
    vp.v[j] = f.beta2 * vp.v[j] + f.one_minus2 * grad * grad;
    wp.v[j] = wp.v[j] * f.keep - f.step * mp.v[j] / (root_of(vp.v[j]) * f.root + f.eps);
    if (kLow) put(lp.v, j, static_cast<float>(wp.v[j]));
  }
  store(s.w, i, wp);
  store(s.m, i, mp);
  store(s.v, i, vp);
  if (kLow) store(s.low, i, lp);
}

/// A block a chunk of a segment.
template <class A, class L, bool kLow>
__global__ void update(const __grid_constant__ Segments<A, L> all) {
  constexpr int N = kPackOf<A>;
  int at = 0;
  for (int end = all.count; end - at > 1;) {
    const int middle = (at + end) / 2;
    (blockIdx.x >= all.of[middle].block ? at : end) = middle;
  }
  const Segment<A, L>& s = all.of[at];
  const int64_t begin = int64_t{blockIdx.x - s.block} * kChunk;
  const int n = static_cast<int>(s.n - begin < kChunk ? s.n - begin : kChunk);
  const int whole = s.packs ? n / N * N : 0;
  for (int i = threadIdx.x * N; i < whole; i += kThreads * N) update_pack<N, kLow>(s, begin + i);
  for (int i = whole + threadIdx.x; i < n; i += kThreads) update_pack<1, kLow>(s, begin + i);
}

template <class A, class L>
void run(Stream& s, const std::vector<AdamwSpan>& spans) {
  Segments<A, L> some;
  unsigned blocks = 0;
  const auto flush = [&] {
    if (some.count == 0) return;
    launch(s, dim3(blocks), kThreads, 0, some.of[0].low ? update<A, L, true> : update<A, L, false>, some);
    some.count = 0;
    blocks = 0;
  };
  for (const AdamwSpan& span : spans) {
    int64_t begin = 0;
    for (const AdamwRun& r : span.runs) {
      if (some.count == Segments<A, L>::kMost) flush();
      Segment<A, L>& to = some.of[some.count++];
      to.w = static_cast<A*>(span.master) + begin;
      to.m = static_cast<A*>(span.exp_avg) + begin;
      to.v = static_cast<A*>(span.exp_avg_sq) + begin;
      to.g = static_cast<const A*>(span.grad) + begin;
      to.low = span.low ? static_cast<L*>(span.low) + begin : nullptr;
      to.n = r.end - begin;
      to.block = blocks;
      to.packs = aligned({to.w, to.m, to.v, to.g}) &&
                 reinterpret_cast<uintptr_t>(to.low) % (kPackOf<A> * sizeof(L)) == 0;
      to.factors = AdamwFactors<A>(r.args, r.decay);
      blocks += static_cast<unsigned>((to.n + kChunk - 1) / kChunk);
      begin = r.end;
    }
  }
  flush();
}

}  // namespace
}  // namespace cuda

void adamw_cuda(Stream& s, DType t, DType low_type, std::vector<AdamwSpan> spans) {
  dispatch_half(low_type,
                [&]<class L>() { dispatch_wide(t, [&]<class A>() { cuda::run<A, L>(s, spans); }); });
}

}  // namespace ltrain
