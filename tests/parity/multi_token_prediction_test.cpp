// Multi-token prediction under every axis: its modules stand with the head, and read the embedding of the
// first stage.
#include "tests/parity/parity.h"
#include "tests/parity/recipe_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions predicts(int64_t modules) {
  TinyOptions o;
  o.architecture = "deepseek_v3";
  o.moe.num_experts = 4;
  o.moe.shared_experts = 1;
  o.moe.score = RouterScore::sigmoid;
  o.moe.bias_update_rate = 0.05;
  o.moe.dense_layers = {0};
  o.modules = modules;
  o.layers = 4;
  o.micro_batch = 4;
  o.padded_targets = true;
  return o;
}

const NamedLayout kModuleLayouts[] = {
    {"data 2, ZeRO-1", [](TinyOptions& o) { o.ranks = 2, o.zero_stage = 1; }},
    {"data 4, ZeRO-3", [](TinyOptions& o) { o.ranks = 4, o.zero_stage = 3; }},
    {"hybrid, ZeRO-2", [](TinyOptions& o) { o.ranks = 4, o.zero_stage = 2, o.shard = 2; }},
    {"tensor 2", [](TinyOptions& o) { o.tensor = 2; }},
    {"tensor 4 with sequence, ZeRO-1",
     [](TinyOptions& o) { o.tensor = 4, o.sequence_parallel = true, o.zero_stage = 1; }},
    {"expert 2 of 2, tensor 2", [](TinyOptions& o) { o.ranks = o.expert = 2, o.tensor = 2; }},
    {"context 2", [](TinyOptions& o) { o.context = 2; }},
    {"context 2 by heads, data 2, ZeRO-3",
     [](TinyOptions& o) { o.context = 2, o.context_comm = "a2a", o.ranks = 2, o.zero_stage = 3; }},
    {"1f1b", [](TinyOptions& o) { o.pipeline = 2, o.micro_batch = 2; }},
    {"zb-h1, ZeRO-1",
     [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zb-h1", o.ranks = 2, o.zero_stage = 1; }},
    // Its first and last stage are one rank's.
    {"zbv", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zbv", o.chunks = 2, o.micro_batch = 2; }},
    {"interleaved, ZeRO-3, tensor 2",
     [](TinyOptions& o) {
       o.pipeline = 2, o.schedule = "interleaved", o.chunks = 2, o.ranks = 2, o.zero_stage = 3, o.tensor = 2;
     }},
};

TinyOptions under(TinyOptions o, const NamedLayout& layout) {
  layout.set(o);
  o.micro_batch = std::min<int64_t>(o.micro_batch, o.global_batch / o.ranks / (o.pipeline > 1 ? 2 : 1));
  return o;
}

}  // namespace

TEST_CASE("multi-token prediction equals one process to 1e-12 in fp64 under every axis") {
  TinyOptions one = predicts(2);
  one.tied = GENERATE(false, true);
  one.untied = !one.tied;
  one.packed = !one.tied;
  one.dropout = one.tied ? 0.1 : 0;
  const TinyResult base = train_tiny(one);
  for (const double loss : base.mtp_losses) CHECK(loss > 1);
  for (const NamedLayout& layout : kModuleLayouts) {
    INFO(layout.name << (one.tied ? ", tied" : ""));
    const TinyOptions o = under(one, layout);
    const TinyResult many = train_tiny(o);
    require_parity(base, many, 1e-12);
    CHECK(many.plan_bytes == many.used_bytes);
    CHECK(many.plan_host == many.used_host);
    if (o.expert == 1) CHECK(many.plan_wire == many.used_wire);  // rows of experts go as routers say
  }
}

TEST_CASE("stages of ZeRO with multi-token prediction agree to the bit in bf16") {
  TinyOptions o = predicts(1);
  o.precision = "bf16";
  o.ranks = 2;
  const TinyResult base = train_tiny(o);
  for (int stage : {1, 2, 3}) {
    INFO("stage " << stage);
    o.zero_stage = stage;
    check_same_bits(base, train_tiny(o));
  }
}

TEST_CASE("a factor of 0 trains nothing of multi-token prediction, and lm_loss is the model's own") {
  TinyOptions with = predicts(1), without = predicts(0);
  with.modules_scale = 0;
  const TinyResult off = train_tiny(with), none = train_tiny(without);
  CHECK(off.losses == none.losses);
  CHECK(off.eval_loss == none.eval_loss);
  for (const auto& [name, gradient] : off.gradients)
    if (!none.gradients.count(name))
      CHECK(std::all_of(gradient.begin(), gradient.end(), [](double g) { return g == 0; }));
  with.modules_scale = 0.3;  // negative control: trained, it changes the model
  const TinyResult on = train_tiny(with);
  CHECK(on.losses[0] == none.losses[0]);
  CHECK(on.losses[1] != none.losses[1]);
  CHECK(on.mtp_losses[2] < off.mtp_losses[2]);
}

TEST_CASE("multi-token prediction beside recomputation, offloaded weights and fewer logits at once") {
  TinyOptions o = predicts(2);
  o.ranks = 2;
  o.zero_stage = 3;
  const TinyResult base = train_tiny(o);
  TinyOptions other = o;
  other.offload.params = 1;
  check_same_bits(base, train_tiny(other));
  other = o;
  other.recompute.tensors = set_of({BlockTensor::attention_norm, BlockTensor::mlp_norm});
  check_same_bits(base, train_tiny(other));
  other = o;
  other.logits_chunk.rows = 8;
  require_parity(base, train_tiny(other), 1e-12);
}
