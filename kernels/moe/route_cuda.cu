#include "kernels/cuda/column_sums_cuda.h"
#include "kernels/moe/keep_first_cuda.h"
#include "kernels/moe/route.h"
#include "kernels/moe/route_token.h"

namespace ltrain {
namespace cuda {
namespace {

// block size with one token a thread: 16,384 tokens use all multiprocessors
constexpr int kTokenThreads = 64;
constexpr int kMostThreads = 1024;  // size of the single block that reads all logits

template <class A>
__device__ RouteToken<A> token_at(const RoutePointers& p, const RouteArgs& a, int64_t t) {
  const A* norm = static_cast<const A*>(p.norm) + 2 * t;
  return {static_cast<const A*>(p.logits) + t * a.experts, static_cast<const A*>(p.bias), norm[0], norm[1],
          a};
}

/// One thread for each token.
template <class A>
__global__ void choose(RoutePointers p, RouteArgs a) {
  for (int64_t t = grid_thread(); t < p.tokens; t += grid_stride()) {
    RouteToken<A> token = token_at<A>(p, a, t);
    token.prepare();
    A* norm = static_cast<A*>(p.norm) + 2 * t;
    norm[0] = token.lse, norm[1] = token.sum;
    token.choose(t, p.experts + t * a.top_k, static_cast<A*>(p.weights) + t * a.top_k);
    for (int64_t i = t * a.top_k; i < (t + 1) * a.top_k; ++i) p.slots[i] = -1;
    if (!p.identity_weights) continue;
    static_cast<A*>(p.identity_weights)[t] =
        token.identity_weight(p.experts + t * a.top_k, static_cast<const A*>(p.weights) + t * a.top_k);
    p.identity_rows[t] = static_cast<int32_t>(t);
  }
}

/// Term of a token in the statistics of its run: its choice of expert i, or its score of it.
template <class A>
struct Statistic {
  RoutePointers p;
  RouteArgs a;
  int64_t first;
  bool scores;
  __device__ double operator()(int64_t row, int64_t col) const {
    const int64_t t = first + row;
    if (scores) {
      const RouteToken<A> token = token_at<A>(p, a, t);
      return static_cast<double>(token.score(col) / token.sum);
    }
    double chosen = 0;
    for (int64_t j = 0; j < a.top_k; ++j) chosen += p.experts[t * a.top_k + j] == col;
    return chosen;
  }
};

/// One block for each real expert: selects the assignments that it keeps. Their slot becomes their index
/// among the expert's.
template <class A>
__global__ void keep(RoutePointers p, RouteArgs a) {
  int64_t* counts = shared_memory<int64_t>();
  const int64_t n = p.tokens * a.top_k, e = blockIdx.x;
  const int64_t begin = n * threadIdx.x / blockDim.x, end = n * (threadIdx.x + 1) / blockDim.x;
  const A* weights = static_cast<const A*>(p.weights);
  const auto rank = [&](int64_t i) { return rank_of(a, i, weights[i]); };
  const auto counted = [&](auto&& f) {
    int64_t c = 0;
    for (int64_t i = begin; i < end; ++i) c += p.experts[i] == e && f(rank(i));
    return c;
  };
  int64_t all = 0, total = 0;
  int64_t before = sum_before(counted([](uint64_t) { return true; }), counts, all);
  uint64_t least = 0;  // higher ranks are kept, and the first ones of equal rank
  int64_t equal_kept = n, equal_before = 0;
  if (a.capacity > 0 && all > a.capacity && a.drop != Drop::last_token) {
    const KeptRanks k = kept_ranks<A>(a.capacity, counted, counts);
    least = k.least, equal_kept = k.equal_kept;
    equal_before = sum_before(counted([&](uint64_t w) { return w == least; }), counts, total);
    // New indices among the kept choices.
    int64_t mine = 0, equal = equal_before;
    for (int64_t i = begin; i < end; ++i)
      if (p.experts[i] == e) mine += rank(i) > least || (rank(i) == least && equal++ < equal_kept);
    before = sum_before(mine, counts, total);
  }
  const bool by_weight = equal_kept < n;
  for (int64_t i = begin; i < end; ++i) {
    if (p.experts[i] != e) continue;
    bool kept = true;
    if (by_weight) kept = rank(i) > least || (rank(i) == least && equal_before++ < equal_kept);
    if (a.capacity > 0 && before >= a.capacity) kept = false;
    p.slots[i] = kept ? static_cast<int32_t>(before++) : -1;
  }
  if (threadIdx.x == 0) p.counts[e] = a.capacity > 0 && all > a.capacity ? a.capacity : all;
}

/// Turns indices within an expert into rows over all experts.
__global__ void place_rows(RoutePointers p, RouteArgs a) {
  const int64_t runs = p.tokens / p.run;
  for (int64_t e = grid_thread(); e < a.experts; e += grid_stride())
    p.statistics[2 * runs * a.experts + e] = e < a.real_experts() ? static_cast<double>(p.counts[e]) : 0;
  for (int64_t i = grid_thread(); i < p.tokens * a.top_k; i += grid_stride()) {
    if (p.slots[i] < 0) continue;
    int64_t row = p.slots[i];
    for (int32_t e = 0; e < p.experts[i]; ++e) row += p.counts[e];
    p.slots[i] = static_cast<int32_t>(row);
    p.sources[row] = static_cast<int32_t>(i);
  }
}

/// One block: finds the first token with a non-finite logit. Neighbouring threads read neighbouring logits.
template <class A>
__global__ void find_bad(RoutePointers p, RouteArgs a) {
  const A* logits = static_cast<const A*>(p.logits);
  const int64_t n = p.tokens * a.experts;
  int64_t bad = n;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    if (const A v = load_one(logits, i); !(v - v == 0) && i < bad) bad = i;  // infinite or NaN
  int64_t first = bad == n ? p.tokens : bad / a.experts;
  first = -block_reduce(-first, Max(), -p.tokens, shared_memory<int64_t>());
  if (threadIdx.x == 0) p.counts[a.real_experts()] = first == p.tokens ? -1 : first;
}

template <class A>
__global__ void backward(A* dlogits, RouteGradients d, RoutePointers p, RouteArgs a) {
  for (int64_t t = grid_thread(); t < p.tokens; t += grid_stride())
    token_at<A>(p, a, t).backward(dlogits + t * a.experts, TokenGradients<A>(d, t, a.top_k, a.experts, p.run),
                                  p.experts + t * a.top_k, static_cast<const A*>(p.weights) + t * a.top_k);
}

template <class A>
__global__ void z_loss(double* total, const A* norm, int64_t tokens, double scale) {
  double sum = 0;
  for (int64_t t = threadIdx.x; t < tokens; t += blockDim.x) sum += double(norm[2 * t]) * norm[2 * t];
  sum = block_reduce(sum, Sum(), 0.0, shared_memory<double>());
  if (threadIdx.x == 0) *total += scale * sum;
}

/// One block. Neighbouring threads read neighbouring logits.
template <class A>
__global__ void router_entropy(double* total, RoutePointers p, RouteArgs a, double scale) {
  double sum = 0;
  for (int64_t n = threadIdx.x; n < p.tokens * a.experts; n += blockDim.x) {
    const RouteToken<A> token = token_at<A>(p, a, n / a.experts);
    sum += static_cast<double>(token.entropy(n % a.experts));
  }
  sum = block_reduce(sum, Sum(), 0.0, shared_memory<double>());
  if (threadIdx.x == 0) *total += scale * sum;
}

template <class F>
void dispatch(DType t, F&& f) {
  dispatch_wide(t, f);
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void route_forward_cuda(Stream& s, DType type, RoutePointers p, RouteArgs a) {
  cuda::dispatch(type, [&]<class A>() {
    const int64_t n = p.tokens * a.top_k;
    launch(s, blocks_for(p.tokens, kTokenThreads), kTokenThreads, 0, cuda::choose<A>, p, a);
    const int64_t runs = p.tokens / p.run;
    for (int64_t run = 0; run < runs; ++run)
      for (const bool scores : {false, true})
        column_sums(s, p.statistics + (run + (scores ? runs : 0)) * a.experts,
                    cuda::Statistic<A>{p, a, run * p.run, scores}, p.run, a.experts, false);
    launch(s, dim3(static_cast<unsigned>(a.real_experts())), kThreads, kThreads * 8, cuda::keep<A>, p, a);
    launch(s, blocks_for(n, kThreads), kThreads, 0, cuda::place_rows, p, a);
    launch(s, dim3(1), kMostThreads, kWarp * 8, cuda::find_bad<A>, p, a);
  });
}

void route_backward_cuda(Stream& s, DType type, void* dlogits, RouteGradients d, RoutePointers p,
                         RouteArgs a) {
  cuda::dispatch(type, [&]<class A>() {
    launch(s, blocks_for(p.tokens, kThreads), kThreads, 0, cuda::backward<A>, static_cast<A*>(dlogits), d, p,
           a);
  });
}

void add_router_entropy_cuda(Stream& s, DType type, double* total, RoutePointers p, RouteArgs a,
                             double scale) {
  cuda::dispatch(type, [&]<class A>() {
    launch(s, dim3(1), kMostThreads, kWarp * 8, cuda::router_entropy<A>, total, p, a, scale);
  });
}

void add_z_loss_cuda(Stream& s, DType type, double* total, const void* norm, int64_t tokens, double scale) {
  cuda::dispatch(type, [&]<class A>() {
    launch(s, dim3(1), kThreads, kWarp * 8, cuda::z_loss<A>, total, static_cast<const A*>(norm), tokens,
           scale);
  });
}

}  // namespace ltrain
