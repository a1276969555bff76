#include <algorithm>

#include "kernels/moe/keep_first.h"
#include "kernels/moe/route.h"
#include "kernels/moe/route_token.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

constexpr int64_t kBlock = 128;  // tokens of a partial sum of scores, independent of the number of threads

template <class A>
RouteToken<A> token_at(const RoutePointers& p, const RouteArgs& a, int64_t t) {
  const A* norm = static_cast<const A*>(p.norm) + 2 * t;
  return {static_cast<const A*>(p.logits) + t * a.experts, static_cast<const A*>(p.bias), norm[0], norm[1],
          a};
}

/// One block of tokens: choices, weights, and sums for the statistics, (2, E).
template <class A>
void route_block(const RoutePointers& p, const RouteArgs& a, int64_t begin, int64_t end, double* sums,
                 int64_t& bad) {
  std::fill(sums, sums + 2 * a.experts, 0.0);
  for (int64_t t = begin; t < end; ++t) {
    RouteToken<A> token = token_at<A>(p, a, t);
    if (!token.prepare() && bad < 0) bad = t;
    A* norm = static_cast<A*>(p.norm) + 2 * t;
    norm[0] = token.lse, norm[1] = token.sum;
    int32_t* experts = p.experts + t * a.top_k;
    const A* weights = static_cast<A*>(p.weights) + t * a.top_k;
    token.choose(t, experts, static_cast<A*>(p.weights) + t * a.top_k);
    if (p.identity_weights) {
      static_cast<A*>(p.identity_weights)[t] = token.identity_weight(experts, weights);
      p.identity_rows[t] = static_cast<int32_t>(t);
    }
    for (int64_t j = 0; j < a.top_k; ++j)
      if (experts[j] >= 0) sums[experts[j]] += 1;
    for (int64_t i = 0; i < a.experts; ++i) sums[a.experts + i] += token.score(i) / token.sum;
  }
}

/// Assigns rows of real experts, sorted by expert, and within an expert by token.
template <class A>
void make_slots(const RoutePointers& p, const RouteArgs& a) {
  const int64_t n = p.tokens * a.top_k, real = a.real_experts();
  const auto has_row = [&](int64_t i) { return p.experts[i] >= 0 && p.experts[i] < real; };
  int64_t* begin = scratch<int64_t>(0, real + 1);
  std::fill(begin, begin + real + 1, 0);
  for (int64_t i = 0; i < n; ++i)
    if (has_row(i)) ++begin[p.experts[i] + 1];
  for (int64_t e = 0; e < real; ++e) begin[e + 1] += begin[e];
  int32_t* sorted = scratch<int32_t>(1, n);
  int64_t* at = p.counts;  // position of each expert's next assignment
  std::copy(begin, begin + real, at);
  for (int64_t i = 0; i < n; ++i)
    if (has_row(i)) sorted[at[p.experts[i]]++] = static_cast<int32_t>(i);
  std::fill(p.slots, p.slots + n, -1);
  int64_t row = 0;
  for (int64_t e = 0; e < real; ++e) {
    int64_t count = begin[e + 1] - begin[e];
    if (a.capacity > 0 && count > a.capacity) {
      keep_first(a, sorted + begin[e], count, [&](int32_t i) { return static_cast<const A*>(p.weights)[i]; });
      count = a.capacity;
    }
    p.counts[e] = count;
    for (int64_t i = 0; i < count; ++i, ++row) {
      p.sources[row] = sorted[begin[e] + i];
      p.slots[p.sources[row]] = static_cast<int32_t>(row);
    }
  }
}

template <class F>
void dispatch(DType t, F&& f) {
  dispatch_wide(t, f);
}

}  // namespace

void route_forward_cpu(DType type, RoutePointers p, RouteArgs a) {
  dispatch(type, [&]<class A>() {
    const int64_t runs = p.tokens / p.run, blocks = (p.run + kBlock - 1) / kBlock, width = 2 * a.experts;
    double* sums = scratch<double>(2, runs * blocks * width);
    int64_t* bad = scratch<int64_t>(3, runs * blocks);
    parallel_for(runs * blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) {
        const int64_t run = b / blocks * p.run, begin = b % blocks * kBlock;
        bad[b] = -1;
        route_block<A>(p, a, run + begin, run + std::min(begin + kBlock, p.run), sums + b * width, bad[b]);
      }
    });
    std::fill(p.statistics, p.statistics + runs * width, 0.0);
    int64_t& first_bad = p.counts[a.real_experts()];
    first_bad = -1;
    for (int64_t b = 0; b < runs * blocks; ++b) {
      double* chosen = p.statistics + b / blocks * a.experts;
      for (int64_t i = 0; i < a.experts; ++i) {
        chosen[i] += sums[b * width + i];
        chosen[runs * a.experts + i] += sums[b * width + a.experts + i];
      }
      if (first_bad < 0) first_bad = bad[b];
    }
    make_slots<A>(p, a);
    for (int64_t i = 0; i < a.experts; ++i)
      p.statistics[runs * width + i] = i < a.real_experts() ? static_cast<double>(p.counts[i]) : 0;
  });
}

void route_backward_cpu(DType type, void* dlogits, RouteGradients d, RoutePointers p, RouteArgs a) {
  dispatch(type, [&]<class A>() {
    parallel_for(p.tokens, 64, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        token_at<A>(p, a, t).backward(
            static_cast<A*>(dlogits) + t * a.experts, TokenGradients<A>(d, t, a.top_k, a.experts, p.run),
            p.experts + t * a.top_k, static_cast<const A*>(p.weights) + t * a.top_k);
    });
  });
}

void add_z_loss_cpu(DType type, double* total, const void* norm, int64_t tokens, double scale) {
  dispatch(type, [&]<class A>() {
    double sum = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      const double lse = static_cast<const A*>(norm)[2 * t];
      sum += lse * lse;
    }
    *total += scale * sum;
  });
}

void add_router_entropy_cpu(DType type, double* total, RoutePointers p, RouteArgs a, double scale) {
  dispatch(type, [&]<class A>() {
    const int64_t blocks = (p.tokens + kBlock - 1) / kBlock;
    double* sums = scratch<double>(2, blocks);
    parallel_for(blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) {
        sums[b] = 0;
        for (int64_t t = b * kBlock; t < std::min((b + 1) * kBlock, p.tokens); ++t)
          sums[b] += static_cast<double>(token_at<A>(p, a, t).entropy());
      }
    });
    double sum = 0;
    for (int64_t b = 0; b < blocks; ++b) sum += sums[b];
    *total += scale * sum;
  });
}

}  // namespace ltrain::LT_ISA
