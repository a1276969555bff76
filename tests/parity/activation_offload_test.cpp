// Activations that are away between forward and backward: the same bits in every layout, less memory by what
// left, and plans have both sides to the byte.
#include <numeric>

#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

ActivationOffloadOptions everything(double fraction = 1) {
  ActivationOffloadOptions o;
  o.fraction = fraction;
  o.input = true;
  for (int i = 0; i < kBlockTensors; ++i) o.tensors.add(static_cast<BlockTensor>(i));
  return o;
}

ActivationOffloadOptions some(std::initializer_list<BlockTensor> which) {
  ActivationOffloadOptions o;
  o.fraction = 1;
  for (BlockTensor t : which) o.tensors.add(t);
  return o;
}

TinyOptions fp32_job(const char* architecture) {
  TinyOptions o = five_layer_job(architecture);
  o.precision = "fp32";
  return o;
}

int64_t all(const std::vector<OffloadedBytes>& ranks) {
  return std::accumulate(ranks.begin(), ranks.end(), int64_t{0},
                         [](int64_t sum, const OffloadedBytes& b) { return sum + b.activations; });
}

void check_same_offloaded(const TinyResult& stored, const TinyResult& away) {
  check_same_bits(stored, away);
  CHECK(away.plan_bytes == away.used_bytes);
  CHECK(away.plan_offloaded == away.used_offloaded);
  CHECK(away.used_wire == stored.used_wire);
  CHECK(all(away.used_offloaded) > 0);
}

}  // namespace

TEST_CASE("activations that leave give the bits of those that stay, beside every way of recomputing") {
  using enum BlockTensor;
  const std::string precision = GENERATE(as<std::string>(), "fp32", "bf16");
  for (const char* architecture : {"llama", "gpt2", "olmo2", "gemma2", "gemma3_text", "deepseek_v2"}) {
    TinyOptions o = fp32_job(architecture);
    o.precision = precision;
    const TinyResult stored = train_tiny(o);
    CHECK(all(stored.used_offloaded) == 0);
    for (const ActivationOffloadOptions& a :
         {everything(), everything(0.4), some({qkv}), some({mlp_hidden, residual})}) {
      o.activations = a;
      o.recompute = {};
      INFO(architecture << " " << precision << " fraction " << a.fraction << " tensors "
                        << int{a.tensors.bits});
      check_same_offloaded(stored, train_tiny(o));
      RecomputeOptions parts;
      for (BlockTensor t : {attention_norm, mlp_norm, mlp_activation}) parts.tensors.add(t);
      o.recompute = parts;
      check_same_offloaded(stored, train_tiny(o));
      if (!a.input) continue;
      for (int64_t run : {1, 2}) {
        o.recompute = {.run = run, .tensors = {}};
        INFO("runs of " << run);
        check_same_offloaded(stored, train_tiny(o));
      }
    }
  }
}

TEST_CASE("activations leave in every layout, bit for bit") {
  const auto check = [&](const std::string& name, TinyOptions o) {
    const TinyResult stored = train_tiny(o);
    for (double fraction : {1.0, 0.5}) {
      o.activations = everything(fraction);
      INFO(name << " fraction " << fraction);
      check_same_offloaded(stored, train_tiny(o));
    }
  };
  for (const char* architecture : {"llama", "gpt2"}) each_layout(fp32_job(architecture), check);
  Family after = family_of("llama");
  after.traits.norm_placement = NormPlacement::after;
  TinyOptions with_after = fp32_job("llama");
  with_after.family = &after;
  each_layout(with_after, check);
  TinyOptions o = fp32_job("llama");
  o.ranks = 2, o.expert = 2, o.moe.num_experts = 4, o.dropout = 0;
  check("experts", o);
}

TEST_CASE("activations of experts leave however their rows travel, and train as one process does") {
  using enum BlockTensor;
  TinyOptions one = fp32_job("mixtral");
  one.precision = "fp64";
  one.dropout = 0;
  one.layers = 4;
  one.micro_batch = 2;
  one.global_batch = 8;
  one.moe.num_experts = 4;
  one.moe.balance = BalanceLoss::none;
  one.moe.shared_experts = 1;
  one.moe.shared_expert_gate = true;
  const TinyResult whole = train_tiny(one);
  const auto check = [&](const char* name, auto&& set) {
    INFO(name);
    TinyOptions o = one;
    o.ranks = o.expert = 2, o.micro_batch = 1;
    set(o);
    const TinyResult stored = train_tiny(o);
    require_parity(whole, stored, 1e-12);
    for (const ActivationOffloadOptions& a :
         {everything(), some({mlp_hidden, mlp_activation}), some({permuted_tokens, expert_output})}) {
      INFO("tensors " << a.tensors.bits);
      o.activations = a;
      check_same_offloaded(stored, train_tiny(o));
      RecomputeOptions parts;
      parts.tensors.add(mlp_activation);
      o.recompute = parts;
      if (a.tensors.has(permuted_tokens)) check_same_offloaded(stored, train_tiny(o));
      o.recompute = {};
    }
  };
  check("all-to-all", [](TinyOptions&) {});
  check("ZeRO-3 on two levels", [](TinyOptions& o) {
    o.ranks = o.expert = 4, o.micro_batch = 1, o.zero_stage = 3, o.intra_node_experts = 2;
  });
  check("gathered tokens", [](TinyOptions& o) { o.dispatch.gather = true; });
  check("in parts", [](TinyOptions& o) { o.dispatch.chunks = 2; });
  check("in slices", [](TinyOptions& o) { o.dispatch.row_budget = 1; });
  check("with copies", [](TinyOptions& o) { o.dispatch.replicas = 2; });
  check("experts that tensor ranks share", [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = true; });
  check("experts of tensor ranks", [](TinyOptions& o) {
    o.tensor = 2, o.sequence_parallel = true, o.expert_tensor = false, o.expert = 4;
  });
  check("a ring", [](TinyOptions& o) { o.context = 2, o.ranks = 1, o.micro_batch = 2; });
  for (const char* schedule : {"1f1b", "interleaved", "zb-h1", "dualpipev"})
    check(schedule, [&](TinyOptions& o) {
      const std::string name = o.schedule = schedule;
      o.pipeline = 2, o.chunks = name == "interleaved" || name == "dualpipev" ? 2 : 1;
    });
}

TEST_CASE("what experts keep is most of an MoE layer, and leaves the arena with the rest") {
  TinyOptions o = fp32_job("mixtral");
  o.dropout = 0;
  o.ranks = o.expert = 2;
  o.moe.num_experts = 4;
  o.seq = 96;
  o.layers = 8;
  const auto peak = [&](const ActivationOffloadOptions& a) {
    o.activations = a;
    MetaJob job(o, 0);
    job.program.train_step({}, tiny_adamw(1));
    return std::pair(job.memory.peak().most_by_kind[static_cast<int>(MemoryKind::activations)],
                     job.program.offloaded().activations);
  };
  ActivationOffloadOptions but_rows = everything();
  but_rows.tensors.remove(BlockTensor::permuted_tokens);
  but_rows.tensors.remove(BlockTensor::expert_output);
  const auto [stay, few] = peak(but_rows);
  const auto [leave, more] = peak(everything());
  // Rows (2 ranks of 96 tokens, 2 choices each) and what comes back, of 32 numbers each, of six layers; two
  // are there.
  const int64_t rows = (2 * 96 * 2 + 96 * 2) * 32 * 4;
  CHECK(stay - leave >= 5 * rows);
  CHECK(more - few == 7 * rows);  // the last layer stays
}

TEST_CASE("what leaves is not in the arena, whatever the number of layers") {
  const auto peak = [](int64_t layers, const ActivationOffloadOptions& a) {
    TinyOptions o = fp32_job("llama");
    o.layers = layers;
    o.seq = 96;
    o.activations = a;
    MetaJob job(o, 0);
    job.program.train_step({}, tiny_adamw(1));
    return std::pair(job.memory.peak().most_by_kind[static_cast<int>(MemoryKind::activations)],
                     job.program.offloaded().activations);
  };
  const auto [six, offloaded_six] = peak(6, {});
  const auto [seven, offloaded_seven] = peak(7, {});
  const int64_t layer = seven - six;
  CHECK(offloaded_six + offloaded_seven == 0);
  const auto [few, offloaded_few] = peak(6, everything());
  const auto [many, offloaded_many] = peak(12, everything());
  CHECK(many - few == 6 * 2 * 96 * 4);  // statistics of norms; else two layers, one on its way
  CHECK(few < six - 3 * layer);
  // Whole blocks of what left, but for statistics of norms, which stay.
  CHECK(offloaded_many - offloaded_few == Approx(6.0 * static_cast<double>(layer)).epsilon(0.15));
  const auto [half, offloaded_half] = peak(12, everything(0.5));
  CHECK(offloaded_half == Approx(0.5 * static_cast<double>(offloaded_many)).epsilon(0.15));
  CHECK(half > many + 4 * layer);
}

TEST_CASE("a disk that is full when activations leave ends the step with the code of storage") {
  TinyOptions o = fp32_job("llama");
  o.activations = everything();
  check_full_disk(o, 9, "offload.activations.path");
}
