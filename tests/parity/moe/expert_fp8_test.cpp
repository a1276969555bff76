// Experts in FP8 under every layout: in fp64 around them, so that what differs is what ranks round apart, and
// not the order of sums.
#include <algorithm>
#include <numeric>

#include "tests/parity/moe/moe_jobs.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions fp8_moe(Fp8Recipe recipe) {
  TinyOptions o;
  o.architecture = "mixtral";
  o.moe.num_experts = 8;
  o.moe.balance = BalanceLoss::global;
  o.moe.balance_coeff = 0.1;
  o.moe.z_loss_coeff = 0.01;
  o.micro_batch = 4;
  o.global_batch = 16;
  o.seq = 12;
  o.layers = 4;
  o.padded_targets = true;
  o.fp8.emplace();
  o.fp8->recipe = recipe;
  o.fp8->history = 2;
  return o;
}

void require_exact_memory(const TinyResult& r) { CHECK(r.used_bytes == r.plan_bytes); }

/// Settings whose losses add up over micro-batches of any size; other losses are off.
TinyOptions by_tokens(TinyOptions o) {
  o.moe.balance_coeff = o.moe.z_loss_coeff = 0;
  o.moe.balance = BalanceLoss::none;
  return o;
}

}  // namespace

TEST_CASE("experts in FP8 by delayed scaling: every layout equals one process, in planned memory",
          "[expert][fp8]") {
  const TinyOptions o = fp8_moe(Fp8Recipe::delayed);
  const TinyResult one = train_tiny(o);
  const std::vector<NamedLayout> others{
      {"data", [](TinyOptions& m) { m.ranks = 2; }},
      {"ZeRO-1", [](TinyOptions& m) { m.ranks = 2, m.zero_stage = 1; }},
      {"ZeRO-2", [](TinyOptions& m) { m.ranks = 2, m.zero_stage = 2; }},
      {"ZeRO-3", [](TinyOptions& m) { m.ranks = 2, m.zero_stage = 3; }},
      {"tensor", [](TinyOptions& m) { m.tensor = 2; }},
      {"tensor, sequence", [](TinyOptions& m) { m.tensor = 2, m.sequence_parallel = true; }},
      {"pipeline", [](TinyOptions& m) { m.pipeline = 2; }},
      {"pipeline, zero bubble", [](TinyOptions& m) { m.pipeline = 2, m.schedule = "zb-h1"; }},
      {"context", [](TinyOptions& m) { m.context = 2; }},
      {"copies", [](TinyOptions& m) { m.ranks = m.expert = 2, m.dispatch.replicas = 1; }},
      {"expert 2, zb-h1", [](TinyOptions& m) { m.ranks = m.expert = m.pipeline = 2, m.schedule = "zb-h1"; }},
      {"expert 2, recomputed", [](TinyOptions& m) { m.ranks = m.expert = 2, m.recompute.run = 1; }},
      {"expert 2, activations recomputed",
       [](TinyOptions& m) {
         m.ranks = m.expert = 2, m.recompute.tensors = set_of({BlockTensor::mlp_activation});
       }},
      {"by turns with a budget of rows, ZeRO-2",
       [](TinyOptions& m) {
         m.ranks = m.expert = 2, m.zero_stage = 2, m.dispatch.row_budget = 1, m.interleaved = true;
       }},
      {"zbv, tensor 2, experts over context 2 and data 2, in two parts with a budget",
       [](TinyOptions& m) {
         m.ranks = m.context = m.tensor = m.pipeline = m.chunks = 2, m.expert = 4, m.schedule = "zbv";
         m.dispatch.chunks = 2, m.dispatch.row_budget = 1;
       }},
      {"dualpipev, copies in two parts",
       [](TinyOptions& m) {
         m.ranks = m.expert = m.pipeline = m.chunks = 2, m.schedule = "dualpipev";
         m.dispatch.chunks = 2, m.dispatch.replicas = 1;
       }},
      {"expert 2, activations in files", [](TinyOptions& m) {
         m.ranks = m.expert = 2, m.activations.tensors = set_of({BlockTensor::mlp_activation});
       }}};
  for (const NamedLayout& l : joined(expert_layouts(), others)) {
    INFO(l.name);
    TinyOptions m = o;
    l.set(m);
    m.micro_batch = o.micro_batch / m.ranks;  // the balance loss is of all ranks' tokens
    const TinyResult many = train_tiny(m);
    require_parity(one, many, 1e-11);
    require_exact_memory(many);
    const std::vector<double>& beyond = many.experts[0].beyond_rows;
    if (m.dispatch.row_budget > 0) CHECK(std::accumulate(beyond.begin(), beyond.end(), 0.0) > 0);
  }
}

TEST_CASE("experts in FP8 where all tokens go to one rank: as one process, also in slices", "[expert][fp8]") {
  TinyHooks hooks;
  hooks.begin = equal_scores;  // ties go to experts 0 and 1
  const TinyOptions o = fp8_moe(Fp8Recipe::delayed);
  const TinyResult one = train_tiny(o, {}, hooks);
  CHECK(one.experts[0].chosen[0][2] == 0);
  for (const double budget : {0.0, 1.0})
    for (const int tensor : {1, 2}) {
      CAPTURE(budget, tensor);
      TinyOptions m = o;
      m.ranks = m.expert = 4, m.micro_batch = 1, m.tensor = tensor;
      m.dispatch.row_budget = budget;
      const TinyResult many = train_tiny(m, {}, hooks);
      require_parity(one, many, 1e-11);
      require_exact_memory(many);
    }
}

TEST_CASE("shared experts, dense layers, biases and a capacity beside experts in FP8", "[expert][fp8]") {
  for (const NamedLayout& l :
       {NamedLayout{"a gated shared expert",
                    [](TinyOptions& o) { o.moe.shared_experts = 1, o.moe.shared_expert_gate = true; }},
        {"a dense layer", [](TinyOptions& o) { o.moe.dense_layers = {1}; }},
        {"biases, another activation", [](TinyOptions& o) { o.architecture = "gpt_oss", o.window = 5; }},
        {"a capacity", [](TinyOptions& o) { o.moe.capacity_factor = 1; }}}) {
    INFO(l.name);
    TinyOptions o = fp8_moe(Fp8Recipe::delayed);
    o.micro_batch = o.global_batch;
    l.set(o);
    TinyOptions m = o;
    m.ranks = m.expert = m.tensor = 2;
    m.micro_batch /= 2;
    const TinyResult one = train_tiny(o), many = train_tiny(m);
    require_exact_memory(one);
    require_exact_memory(many);
    if (o.moe.capacity_factor) continue;  // is of a rank's tokens
    require_parity(one, many, 1e-11);
  }
}

TEST_CASE("experts in FP8 by current scaling and by blocks, where a rank has whole micro-batches",
          "[expert][fp8]") {
  for (const Fp8Recipe recipe : {Fp8Recipe::tensorwise, Fp8Recipe::blockwise}) {
    CAPTURE(to_string(recipe));
    TinyOptions o = by_tokens(fp8_moe(recipe));
    o.layers = 2, o.steps = 2, o.global_batch = 8;
    o.hidden = 256, o.heads = 2, o.kv_heads = 2;
    o.intermediate = o.moe.intermediate_size = 256;
    o.moe.num_experts = 4;
    o.moe.shared_experts = 1;
    const TinyResult one = train_tiny(o);
    for (const NamedLayout& l :
         {NamedLayout{"data", [](TinyOptions& m) { m.ranks = 2; }},
          {"ZeRO-1", [](TinyOptions& m) { m.ranks = 2, m.zero_stage = 1; }},
          {"ZeRO-3", [](TinyOptions& m) { m.ranks = 2, m.zero_stage = 3; }},
          {"tensor, sequence", [](TinyOptions& m) { m.tensor = 2, m.sequence_parallel = true; }},
          {"pipeline", [](TinyOptions& m) { m.pipeline = 2, m.schedule = "zb-h1"; }},
          {"recomputed", [](TinyOptions& m) { m.recompute.run = 1; }}}) {
      INFO(l.name);
      TinyOptions m = o;
      l.set(m);
      const TinyResult many = train_tiny(m);
      require_parity(one, many, 1e-11);
      require_exact_memory(many);
    }
  }
}

TEST_CASE(
    "experts' weights in FP8 rounded once a step: the bits of rounding at each use, in memory of their own",
    "[expert][fp8]") {
  for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::tensorwise, Fp8Recipe::blockwise}) {
    CAPTURE(to_string(recipe));
    TinyOptions once = fp8_moe(recipe);
    once.ranks = 2, once.micro_batch = 1;
    if (recipe == Fp8Recipe::delayed) once.expert = 2;
    once.moe.intermediate_size = 40;
    TinyOptions each = once;
    once.zero_stage = 2, each.zero_stage = 3;  // releases the weights
    check_same_bits(train_tiny(once), train_tiny(each));
    const auto rounded_bytes = [](const TinyOptions& of) {
      MetaJob meta(of, 0);
      meta.program.train_step({}, tiny_adamw(1));
      return meta.memory.peak().by_kind[static_cast<int>(MemoryKind::fp8_weights)];
    };
    const int64_t attention = 64 * 32 + 32 * 32, experts = 8 / once.expert * 3 * 40 * 32;
    const int64_t layer = rounded_bytes(once) / once.layers;
    CHECK(layer >= 2 * (attention + experts));
    if (recipe == Fp8Recipe::delayed) CHECK(layer == 2 * (attention + experts));
    CHECK(rounded_bytes(each) == 0);
  }
}

TEST_CASE("what FP8 changes of experts is seen: their own steps, kept layers, and ranks that do not agree",
          "[expert][fp8]") {
  const TinyOptions o = fp8_moe(Fp8Recipe::delayed);
  const auto loss = [&](auto change) {
    TinyOptions m = o;
    change(m);
    return train_tiny(m).losses.back();
  };
  const double all = train_tiny(o).losses.back(), plain = loss([](TinyOptions&m) { m.fp8.reset(); });
  CHECK(std::abs(all - plain) > 1e-6);
  CHECK(std::abs(all / plain - 1) < 0.05);
  const auto differs = [&](auto change) {
    const double l = loss(change);
    CHECK(std::abs(l - all) > 1e-8);
    CHECK(std::abs(l - plain) > 1e-8);
  };
  differs([](TinyOptions& m) { m.fp8->keep = {"*.experts.*"}; });
  differs([](TinyOptions& m) { m.fp8->keep = {"*.experts.down_proj"}; });
  differs([](TinyOptions& m) { m.fp8->keep = {"*.self_attn.*"}; });
  differs([](TinyOptions& m) { m.fp8->recipe = Fp8Recipe::tensorwise; });
  differs([](TinyOptions& m) { m.fp8->recipe = Fp8Recipe::blockwise; });
  CHECK(loss([](TinyOptions& m) { m.fp8->keep = {"*"}; }) == plain);
}

TEST_CASE("a run of experts changes between bf16 and FP8 in memory that holds both", "[expert][fp8]") {
  TinyOptions o = fp8_moe(Fp8Recipe::delayed);
  o.precision = "bf16";
  o.steps = 4, o.ranks = o.expert = 2, o.zero_stage = 1, o.micro_batch = 2;
  const MatmulPrecision low = MatmulPrecision::fp8, plain = MatmulPrecision::plain;
  const auto losses = [&](std::vector<MatmulPrecision> products) {
    TinyOptions m = o;
    m.products = std::move(products);
    const TinyResult r = train_tiny(m);
    require_exact_memory(r);
    return r.losses;
  };
  const std::vector<double> both = losses({low, low, plain, plain}), first = losses({low, low, low, low}),
                            second = losses({plain, plain, plain, plain});
  CHECK(both[1] == first[1]);
  CHECK(both[0] != second[0]);
  CHECK(both[3] != first[3]);
}

TEST_CASE("bf16 with experts in FP8 trains as bf16 does", "[expert][fp8]") {
  check_fp8_follows_bf16(fp8_moe(Fp8Recipe::delayed),
                         [](TinyOptions& o) { o.ranks = o.expert = 2, o.zero_stage = 2, o.micro_batch = 1; });
}
