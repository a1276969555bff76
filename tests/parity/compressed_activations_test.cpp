// Saved activations as codes of 8 bits: the same rounding in every layout, planned to the byte, and next to
// what exact ones train.
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

using enum BlockTensor;

RecomputeOptions as_int8(std::initializer_list<BlockTensor> which) {
  RecomputeOptions r;
  r.compressed.int8 = set_of(which);
  return r;
}

RecomputeOptions mixed() {
  RecomputeOptions r = as_int8({attention_norm, residual, mlp_norm, mlp_activation});
  r.compressed.fp8 = set_of({mlp_hidden});
  return r;
}

TinyOptions wide_job(const char* architecture, const char* precision = "fp64") {
  TinyOptions o = five_layer_job(architecture);
  o.precision = precision;
  o.intermediate = 512;
  return o;
}

TinyResult planned(const TinyOptions& o) {
  const TinyResult r = train_tiny(o);
  CHECK(r.plan_bytes == r.used_bytes);
  CHECK(r.plan_wire == r.used_wire);
  return r;
}

}  // namespace

TEST_CASE("compressed activations round alike in every layout") {
  for (const char* architecture : {"llama", "gpt2", "olmo2"}) {
    TinyOptions one = wide_job(architecture);
    one.recompute = mixed();
    const TinyResult alone = planned(one);
    const auto check = [&](const std::string& name, TinyOptions o) {
      if (o.tensor_mode != "1d") return;  // refused by a rule of recipes
      INFO(architecture << " " << name);
      TinyOptions same = one;
      same.kv_heads = o.kv_heads, same.global_batch = o.global_batch;
      require_parity(planned(same), planned(o), 1e-12);
    };
    each_layout(one, check);
    TinyOptions o = one;
    o.micro_batch = 4;
    INFO("micro-batches of 4");
    require_parity(alone, planned(o), 1e-12);
  }
}

TEST_CASE("forward is exact with compressed activations, and gradients are close to exact ones") {
  TinyOptions o = wide_job("llama");
  o.steps = 1;
  const TinyResult exact = train_tiny(o);
  for (const RecomputeOptions& r : {as_int8({mlp_norm}), as_int8({attention_norm}), as_int8({mlp_activation}),
                                    as_int8({residual}), as_int8({mlp_hidden}), mixed()}) {
    o.recompute = r;
    INFO("int8 " << r.compressed.int8.bits << " fp8 " << r.compressed.fp8.bits);
    const TinyResult got = planned(o);
    CHECK(got.losses == exact.losses);
    const double apart = worst_relative(exact.gradients, got.gradients);
    CHECK(apart > 1e-6);
    CHECK(apart < 0.1);
  }
}

TEST_CASE("compressed activations with tensors that are computed again, dropped or elsewhere") {
  TinyOptions o = wide_job("llama");
  o.recompute = as_int8({mlp_norm, mlp_hidden});
  const TinyResult stored = planned(o);
  // The first of a stage's layers alone.
  TinyOptions few = o;
  few.recompute.layers = 2;
  CHECK(planned(few).used_bytes[0] > stored.used_bytes[0]);
  // Made again from the codes: less memory, and other gradients.
  TinyOptions again = o;
  again.recompute.tensors = set_of({mlp_activation});
  CHECK(planned(again).used_bytes[0] < stored.used_bytes[0]);
  // Codes leave as any other saved tensor does.
  TinyOptions away = o;
  away.activations.fraction = 1;
  for (int i = 0; i < kBlockTensors; ++i) away.activations.tensors.add(static_cast<BlockTensor>(i));
  const TinyResult left = planned(away);
  check_same_bits(stored, left);
  CHECK(left.plan_offloaded == left.used_offloaded);
  CHECK(left.used_bytes[0] < stored.used_bytes[0]);
}

TEST_CASE("a compressed tensor takes a byte an element, and a scale for each 128") {
  TinyOptions o = wide_job("llama", "bf16");
  o.seq = 64;
  const auto activations = [&](const RecomputeOptions& r) {
    o.recompute = r;
    MetaJob job(o, 0);
    job.program.train_step({}, tiny_adamw(1));
    return job.memory.peak().most_by_kind[static_cast<int>(MemoryKind::activations)];
  };
  const int64_t stored = activations({}), rows = o.seq;
  // At the peak, the end of forward, each layer has the codes. The last layer has been compressed too.
  const int64_t norm = rows * (o.hidden * 2) - rows * (o.hidden + 4);
  CHECK(activations(as_int8({mlp_norm})) == stored - o.layers * norm);
  const int64_t codes = rows * 2 * (512 + 4 * 4), hidden = rows * 2 * (512 * 2) - codes;
  // The last layer's tensor and its codes are there at once.
  CHECK(activations(as_int8({mlp_hidden})) <= stored - (o.layers - 1) * hidden + codes);
}
