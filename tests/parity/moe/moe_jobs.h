// Small MoE jobs, and beginnings in which their routing is as uneven as it can be.
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/support/tiny_job.h"

namespace ltrain::test {

/// Eight experts, two a token, no balance loss; two steps of eight sequences.
inline TinyOptions tiny_moe() {
  TinyOptions o;
  o.architecture = "mixtral";
  o.moe.num_experts = 8;
  o.moe.balance = BalanceLoss::none;
  o.moe.z_loss_coeff = 0.01;
  o.global_batch = 8;
  o.steps = 2;
  o.padded_targets = true;
  return o;
}

/// The same in micro-batches of two sequences.
inline TinyOptions tiny_moe_of_two() {
  TinyOptions o = tiny_moe();
  o.micro_batch = 2;
  o.seq = 24;
  return o;
}

/// Experts over `data` ranks and the two tensor ranks of each.
inline void experts_over_tensor(TinyOptions& o, int data = 1) {
  o.tensor = 2, o.sequence_parallel = true, o.expert_tensor = false;
  o.ranks = data, o.expert = 2 * data;
}

inline double total(const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); }

/// TinyHooks::begin: the parameters that `zero` says of begin as zeros, in fp64 or fp32; from step 1.
template <class Zero>
int64_t begin_with_zeros(const TinyRank& at, const Zero& zero) {
  at.program.initialize();
  ParameterStore& store = at.program.parameters();
  for (const OwnedPiece& p : store.stored_pieces()) {
    if (!zero(store.spec(p.id))) continue;
    if (p.master.dtype == DType::f64)
      std::fill_n(p.master.ptr<double>(), p.master.elements(), 0.0);
    else
      std::fill_n(p.master.ptr<float>(), p.master.elements(), 0.0F);
  }
  return 1;
}

/// Routers whose weights are zero: in the first step all scores are equal. Tokens go to the first experts;
/// with expert choice experts take the first tokens.
inline int64_t equal_scores(const TinyRank& at) {
  return begin_with_zeros(at, [](const ParameterSpec& p) { return p.router; });
}

/// Inputs of routers and experts are zero in every step: all tokens go to the first experts.
inline int64_t crowded(const TinyRank& at) {
  return begin_with_zeros(at, [](const ParameterSpec& p) {
    return p.name.find("post_attention_layernorm") != std::string::npos;
  });
}

}  // namespace ltrain::test
