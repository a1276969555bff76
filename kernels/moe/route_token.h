// Router for one token, shared by the CPU and CUDA kernels, which are compiled separately. Needs no memory
// beside its arguments.
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/moe/route.h"
#include "kernels/tensor/host_device.h"

namespace ltrain {
namespace {

/// Gradients of one token's weights, and coefficients of the losses of its scores.
template <class A>
struct TokenGradients {
  const A* weights;     ///< (k)
  A identity;           ///< gradient of the sum of weights of zero experts
  const double* table;  ///< (E), or null
  A z, entropy;

  LT_HD TokenGradients(const RouteGradients& d, int64_t t, int64_t top_k, int64_t experts, int64_t run)
      : weights(static_cast<const A*>(d.weights) + t * top_k),
        identity(d.identity ? static_cast<const A*>(d.identity)[t] : A(0)),
        table(d.table ? d.table + t / run * experts : nullptr),
        z(static_cast<A>(d.z)),
        entropy(static_cast<A>(d.entropy)) {}
};

template <class A>
struct RouteToken {
  const A *logits, *bias;
  A lse, sum;  // sum of scores
  const RouteArgs& a;

  LT_HD static A sigmoid(A x) { return 1 / (1 + std::exp(-x)); }
  LT_HD A score(int64_t i) const { return a.sigmoid ? sigmoid(logits[i]) : std::exp(logits[i] - lse); }
  LT_HD A key(int64_t i) const { return bias ? score(i) + bias[i] : logits[i]; }

  /// Sets lse and sum; false if a logit is not finite.
  LT_HD bool prepare() {
    A most = logits[0], exps = 0, scores = 0;
    bool finite = true;
    for (int64_t i = 0; i < a.experts; ++i) {
      finite = finite && std::isfinite(logits[i]);
      if (logits[i] > most) most = logits[i];
    }
    for (int64_t i = 0; i < a.experts; ++i) exps += std::exp(logits[i] - most);
    lse = most + std::log(exps);
    if (a.sigmoid)
      for (int64_t i = 0; i < a.experts; ++i) scores += sigmoid(logits[i]);
    sum = a.sigmoid ? scores : A(1);
    return finite;
  }

  LT_HD A group_score(int64_t g) const {
    const int64_t n = a.experts / a.groups;
    A best = -INFINITY, second = -INFINITY;
    for (int64_t i = g * n; i < (g + 1) * n; ++i) {
      const A k = bias || !a.sigmoid ? key(i) : score(i);
      if (k > best) {
        second = best, best = k;
      } else if (k > second) {
        second = k;
      }
    }
    return (bias || a.sigmoid) && n > 1 ? best + second : best;
  }

  /// Bit g: group g is kept. At most 64 groups.
  LT_HD uint64_t kept_groups() const {
    if (a.kept_groups >= a.groups) return ~uint64_t{0};
    uint64_t kept = 0;
    for (int64_t n = 0; n < a.kept_groups; ++n) {
      int64_t best = -1;
      A best_score = 0;
      for (int64_t g = 0; g < a.groups; ++g) {
        if (kept >> g & 1) continue;
        const A score = group_score(g);
        if (best < 0 || score > best_score) best = g, best_score = score;
      }
      kept |= uint64_t{1} << best;
    }
    return kept;
  }

  /// Chooses the experts of token `t` and their weights.
  LT_HD void choose(int64_t t, int32_t* experts, A* weights) const {
    if (a.selection == Selection::expert_choice) {  // all are candidates; capacity decides
      for (int64_t i = 0; i < a.experts; ++i) {
        experts[i] = static_cast<int32_t>(i);
        weights[i] = static_cast<A>(a.scale) * score(i);
      }
      return;
    }
    if (!a.given || experts[0] < 0) best_experts(experts);
    if (a.selection == Selection::top_p) leave_beyond(experts);
    weigh(experts, weights);
    if (a.selection == Selection::gshard_top2 && a.threshold > 0) {
      const double u = to_uniform(philox(a.random.seed, a.random.stream, a.random.call(t, 1)).v[0]);
      if (u * a.threshold * a.scale >= static_cast<double>(weights[1])) experts[1] = -1 - experts[1];
    }
  }

  LT_HD void best_experts(int32_t* experts) const {
    const uint64_t kept = kept_groups();
    const int64_t in_group = a.experts / a.groups;
    for (int64_t j = 0; j < a.top_k; ++j) {
      int64_t best = -1;
      A best_key = 0;
      for (int64_t i = 0; i < a.experts; ++i) {
        if (!(kept >> (i / in_group) & 1)) continue;
        bool taken = false;
        for (int64_t other = 0; other < j; ++other) taken = taken || experts[other] == i;
        if (taken) continue;
        const A k = key(i);
        if (best < 0 || k > best_key) best = i, best_key = k;
      }
      experts[j] = static_cast<int32_t>(best);
    }
  }

  /// top_p: leaves out the experts behind those whose share of all scores reaches the threshold.
  LT_HD void leave_beyond(int32_t* experts) const {
    A share = score(experts[0]) / sum;
    for (int64_t j = 1; j < a.top_k; ++j) {
      const int32_t e = experts[j];
      if (share >= static_cast<A>(a.threshold)) experts[j] = -1 - e;
      share += score(e) / sum;
    }
  }

  /// Number of the token's experts that weights are made of. With top_p those that are left out come last.
  LT_HD int64_t weighed(const int32_t* experts) const {
    int64_t n = a.top_k;
    if (a.selection == Selection::top_p)
      while (experts[n - 1] < 0) --n;
    return n;
  }

  LT_HD void weigh(const int32_t* experts, A* weights) const {
    const int64_t n = weighed(experts);
    A total = 0, most = logits[experts[0]];
    for (int64_t j = 1; j < n; ++j)
      if (logits[experts[j]] > most) most = logits[experts[j]];
    for (int64_t j = 0; j < n; ++j) {
      weights[j] = over_chosen() ? std::exp(logits[experts[j]] - most) : score(experts[j]);
      total += weights[j];
    }
    const A factor = static_cast<A>(a.scale) / (over_chosen() || a.renormalize ? total + tiny() : A(1));
    for (int64_t j = 0; j < n; ++j) weights[j] *= factor;
    for (int64_t j = n; j < a.top_k; ++j) weights[j] = 0;
  }

  /// True if the softmax is over the chosen logits only.
  LT_HD bool over_chosen() const { return a.top_k_first && !a.sigmoid; }
  LT_HD A tiny() const { return a.sigmoid ? A(1e-20) : A(0); }

  LT_HD static A log_sigmoid(A x) { return (x < 0 ? x : A(0)) - std::log1p(std::exp(x < 0 ? x : -x)); }
  /// Logarithm of the expert's share of all scores.
  LT_HD A log_share(int64_t i) const {
    return a.sigmoid ? log_sigmoid(logits[i]) - std::log(sum) : logits[i] - lse;
  }
  /// Expert's term of the entropy.
  LT_HD A entropy(int64_t i) const {
    const A log = log_share(i);
    return -std::exp(log) * log;
  }
  LT_HD A entropy() const {
    A all = 0;
    for (int64_t i = 0; i < a.experts; ++i) all += entropy(i);
    return all;
  }

  /// Sum of the weights of chosen zero experts.
  LT_HD A identity_weight(const int32_t* experts, const A* weights) const {
    A all = 0;
    for (int64_t j = 0; j < a.top_k; ++j)
      if (experts[j] >= a.real_experts()) all += weights[j];
    return all;
  }

  /// dlogits = terms of table, z and entropy + term of the weights.
  LT_HD void backward(A* dlogits, const TokenGradients<A>& g, const int32_t* experts,
                      const A* weights) const {
    const double* table = g.table;
    const A z = g.z, uncertainty = g.entropy != 0 ? entropy() : A(0);
    // Dot product of the table with the normalized scores.
    A dot = 0;
    if (table)
      for (int64_t i = 0; i < a.experts; ++i) dot += static_cast<A>(table[i]) * score(i) / sum;
    for (int64_t i = 0; i < a.experts; ++i) {
      A d = 0;
      if (table) d = (static_cast<A>(table[i]) - dot) / sum * score(i) * (a.sigmoid ? 1 - score(i) : A(1));
      if (z != 0) d += 2 * z * lse * std::exp(logits[i] - lse);
      if (g.entropy != 0)
        d -= g.entropy * score(i) / sum * (a.sigmoid ? 1 - score(i) : A(1)) * (log_share(i) + uncertainty);
      dlogits[i] = d;
    }
    const auto expert = [&](int64_t j) { return experts[j] < 0 ? -1 - experts[j] : experts[j]; };
    const auto dweight = [&](int64_t j) {
      return experts[j] >= a.real_experts() ? g.identity : g.weights[j];
    };
    const int64_t n = weighed(experts);
    const A scale = static_cast<A>(a.scale);
    A weighted = 0, total = tiny();  // sums of dw * weight and of scores over the chosen experts
    for (int64_t j = 0; j < n; ++j) {
      weighted += dweight(j) * weights[j];
      total += score(expert(j));
    }
    if (over_chosen()) {
      for (int64_t j = 0; j < n; ++j) dlogits[expert(j)] += weights[j] * (dweight(j) - weighted / scale);
      return;
    }
    A softmax_dot = 0;
    const auto dscore = [&](int64_t j) {
      return a.renormalize ? (scale * dweight(j) - weighted) / total : scale * dweight(j);
    };
    if (a.sigmoid) {
      for (int64_t j = 0; j < n; ++j) {
        const A p = score(expert(j));
        dlogits[expert(j)] += p * (1 - p) * dscore(j);
      }
      return;
    }
    for (int64_t j = 0; j < n; ++j) {
      const A d = dscore(j) * score(expert(j));
      softmax_dot += d;
      dlogits[expert(j)] += d;
    }
    if (!a.renormalize)  // otherwise the sum over the chosen experts is zero
      for (int64_t i = 0; i < a.experts; ++i) dlogits[i] -= softmax_dot * score(i);
  }
};

}  // namespace
}  // namespace ltrain
