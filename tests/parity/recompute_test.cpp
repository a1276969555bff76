// Recomputed runs equal stored ones bit for bit, dropout included, in every layout; less is kept, and plans
// say how much to the byte.
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

RecomputeOptions tensors(std::initializer_list<BlockTensor> which) {
  RecomputeOptions r;
  for (BlockTensor t : which) r.tensors.add(t);
  return r;
}

RecomputeOptions run_of(int64_t run, int64_t layers = -1) {
  RecomputeOptions r;
  r.run = run;
  r.layers = layers;
  return r;
}

void check_same_recomputed(const TinyResult& stored, const TinyResult& again) {
  check_same_bits(stored, again);
  CHECK(again.plan_bytes == again.used_bytes);
  CHECK(again.plan_wire == again.used_wire);
}

}  // namespace

TEST_CASE("every way of recomputing equals storing, bit for bit") {
  using enum BlockTensor;
  const std::string precision = GENERATE(as<std::string>(), "fp32", "bf16");
  for (const char* architecture : {"llama", "gpt2", "olmo2", "gemma2", "gemma3_text", "deepseek_v2"}) {
    TinyOptions o = five_layer_job(architecture);
    o.precision = precision;
    const TinyResult stored = train_tiny(o);
    for (const RecomputeOptions& r :
         {run_of(1), run_of(2), run_of(5), run_of(1, 2), tensors({attention_norm}), tensors({qkv}),
          tensors({attention}), tensors({residual}), tensors({mlp_norm}),
          tensors({mlp_hidden, mlp_activation}), tensors({residual, mlp_norm}),
          tensors({attention_norm, qkv, attention, residual, mlp_norm, mlp_hidden, mlp_activation})}) {
      o.recompute = r;
      INFO(architecture << " " << precision << " run " << r.run << " tensors " << int{r.tensors.bits});
      const TinyResult again = train_tiny(o);
      check_same_recomputed(stored, again);
    }
  }
}

TEST_CASE("recomputation in every layout equals storing, bit for bit") {
  using enum BlockTensor;
  const auto check = [&](const std::string& name, TinyOptions o) {
    const TinyResult stored = train_tiny(o);
    for (const RecomputeOptions& r :
         {run_of(2), tensors({attention_norm, attention, residual, mlp_hidden})}) {
      o.recompute = r;
      INFO(name << " run " << r.run);
      check_same_recomputed(stored, train_tiny(o));
    }
  };
  for (const char* architecture : {"llama", "gpt2"}) each_layout(five_layer_job(architecture), check);
  Family after = family_of("llama");
  after.traits.norm_placement = NormPlacement::after;
  TinyOptions with_after = five_layer_job("llama");
  with_after.family = &after;
  each_layout(with_after, check);
}

TEST_CASE(
    "recomputation keeps less: a run of layers one input, and the model's operations are counted once") {
  TinyOptions o = five_layer_job("llama");
  o.seq = 64;
  const auto activations = [&](const RecomputeOptions& r) {
    o.recompute = r;
    MetaJob job(o, 0);
    job.program.train_step({}, tiny_adamw(1));
    return std::pair(job.memory.peak().most_by_kind[static_cast<int>(MemoryKind::activations)],
                     job.trace.model_flops());
  };
  const auto [stored, flops] = activations({});
  const auto [each, flops_each] = activations(run_of(1));
  const auto [pairs, flops_pairs] = activations(run_of(2));
  const auto [norms, flops_norms] =
      activations(tensors({BlockTensor::attention_norm, BlockTensor::mlp_norm}));
  CHECK(flops == flops_each);
  CHECK(flops == flops_pairs);
  CHECK(flops == flops_norms);
  CHECK(each < stored * 0.5);
  CHECK(norms == stored - 2 * o.layers * o.seq * o.hidden * 8);  // two norms a layer
  CHECK(pairs < stored);
}
