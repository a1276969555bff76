// Parameters that are frozen by name: no gradient, no state, no update, and the same under every layout.
#include <catch2/catch.hpp>

#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

bool frozen_by(const TinyOptions& o, const std::string& name) {
  for (const std::string& pattern : o.optimizer.frozen)
    if (name_matches(pattern, name)) return true;
  return false;
}

/// Frozen ones have their first values, bit for bit, and no gradient; the others moved.
void check_frozen(const TinyOptions& o, const TinyResult& r, const NamedTensors& first) {
  int frozen = 0;
  for (const auto& [name, values] : r.parameters) {
    INFO(name);
    const bool same = values == first.at(name);
    CHECK(same == frozen_by(o, name));
    CHECK(r.gradients.count(name) == (frozen_by(o, name) ? 0 : 1));
    frozen += frozen_by(o, name);
  }
  CHECK(frozen > 0);
}

}  // namespace

TEST_CASE(
    "frozen parameters stay, and the norm and the update of the others are those of the same gradients") {
  TinyOptions all;
  all.architecture = GENERATE(as<std::string>(), "llama", "gpt2");
  all.clip = 0.1;  // so that the norm is in every update
  all.padded_targets = true;
  TinyOptions some = all;
  if (all.architecture == "llama") {
    some.optimizer.frozen = {"model.embed_tokens.weight", "model.layers.0.*", "*.mlp.down_proj.weight",
                             "model.norm.weight"};
  } else {  // a norm's weight without its bias, a bias without its weight, a tied embedding
    some.optimizer.frozen = {"*wte.weight", "*h.0.ln_1.weight", "*h.1.ln_2.bias", "*attn.c_proj.bias",
                             "*h.1.mlp.c_fc.weight"};
  }
  const NamedTensors first = at_first(all);
  const TinyResult whole = train_tiny(all), r = train_tiny(some);
  check_frozen(some, r, first);
  // Computed by hand, in double: gradients equal those of the run that trains all, the norm is over trained
  // parameters, and the first update of AdamW follows from both.
  double squares = 0;
  for (const auto& [name, gradient] : r.gradients) {
    const bool same = gradient == whole.gradients.at(name);
    CHECK(same);
    for (const double g : gradient) squares += g * g;
  }
  const double norm = std::sqrt(squares);
  CHECK(std::abs(r.norms[0] - norm) < 1e-12 * norm);
  CHECK(r.norms[0] < 0.99 * whole.norms[0]);
  TinyOptions one = some;
  one.steps = 1;
  const TinyResult once = train_tiny(one);
  const OptimizerStep a = tiny_adamw(1);
  const double scale = std::min(1.0, all.clip / (norm + 1e-6));
  double worst = 0;
  for (const auto& [name, gradient] : r.gradients)
    for (size_t i = 0; i < gradient.size(); ++i) {
      const double g = gradient[i] * scale, before = first.at(name)[i];
      // The moments of a first step are g and g^2 after their corrections.
      const double step = a.lr * g / (std::abs(g) + a.eps), after = once.parameters.at(name)[i];
      const double decayed = before * (1 - a.lr * a.weight_decay);
      worst =
          std::max(worst, std::min(std::abs(after - (before - step)), std::abs(after - (decayed - step))));
    }
  CHECK(worst < 1e-12);
}

TEST_CASE("frozen parameters take neither gradients nor states in any plan") {
  TinyOptions o;
  o.ranks = GENERATE(1, 2);
  o.zero_stage = o.ranks == 1 ? 0 : GENERATE(0, 1, 2, 3);
  const TinyResult all = train_tiny(o);
  o.optimizer.frozen = {"model.embed_tokens.weight", "lm_head.weight"};
  const TinyResult some = train_tiny(o);
  CHECK(some.plan_bytes == some.used_bytes);
  CHECK(some.plan_wire == some.used_wire);
  // Two moments and, below ZeRO-2, a gradient of 8 bytes of each element that this rank has states of.
  const int64_t elements = 2 * o.vocab * o.hidden, ranks = o.zero_stage > 0 ? o.ranks : 1;
  CHECK(all.used_bytes[0] - some.used_bytes[0] >= 2 * 8 * elements / ranks);
}

TEST_CASE("frozen parameters under every axis equal one process to 1e-12 in fp64") {
  TinyOptions one;
  one.layers = 5;
  one.dropout = 0.1;
  one.architecture = GENERATE(as<std::string>(), "llama", "gpt2");
  one.untied = GENERATE(false, true);
  one.micro_batch = 2;
  one.global_batch = 8;
  if (one.architecture == "llama") {
    one.kv_heads = 4, one.intermediate = 64;  // a cube divides these
    one.tied = !one.untied;
    one.optimizer.frozen = {"model.embed_tokens.weight", "model.layers.1.*", "*.input_layernorm.weight",
                            "*o_proj.weight"};
  } else {
    one.optimizer.frozen = {"*wte.weight", "*wpe.weight", "*.h.2.*", "*ln_1.weight", "*mlp.c_proj.*"};
  }
  const TinyResult base = train_tiny(one);
  check_frozen(one, base, at_first(one));
  const auto check = [&](const std::string& name, const std::function<void(TinyOptions&)>& change) {
    INFO(one.architecture << ", " << name << (one.untied ? ", untied" : ", tied"));
    TinyOptions o = one;
    change(o);
    const TinyResult many = train_tiny(o);
    require_parity(base, many, 1e-12);
    CHECK(many.plan_bytes == many.used_bytes);
    CHECK(many.plan_wire == many.used_wire);
  };
  for (const int stage : {1, 2, 3})
    check(fmt::format("data 2, ZeRO-{}", stage), [&](TinyOptions& o) { o.ranks = 2, o.zero_stage = stage; });
  check("tensor 2, sequence, ZeRO-2",
        [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = true, o.ranks = 2, o.zero_stage = 2; });
  check("1f1b, ZeRO-1", [](TinyOptions& o) { o.pipeline = 2, o.ranks = 2, o.zero_stage = 1; });
  check("zb-h1", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zb-h1"; });
  check("zbv", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zbv", o.chunks = 2; });
  check("micro-batches by turns, tensor 2",
        [](TinyOptions& o) { o.interleaved = true, o.tensor = 2, o.ranks = 2; });
  check("2d", [](TinyOptions& o) { o.tensor = 4, o.tensor_mode = "2d"; });
  if (one.architecture == "llama")
    check("3d", [](TinyOptions& o) { o.tensor = 8, o.tensor_mode = "3d", o.micro_batch = 4; });
}

TEST_CASE("frozen experts and norms of an MoE model, in bf16, with an average and offloaded states") {
  TinyOptions o;
  o.architecture = "qwen3_moe";
  o.moe.num_experts = 4;
  o.moe.top_k = 2;
  o.precision = "bf16";
  o.optimizer.frozen = {"*layers.0.mlp.experts.*", "*q_norm.weight", "*layers.1.mlp.gate.weight"};
  const NamedTensors first = at_first(o);
  const TinyResult base = train_tiny(o);
  check_frozen(o, base, first);
  TinyOptions other = o;
  other.ranks = 2;
  other.micro_batch = 4;
  const TinyResult two = train_tiny(other);
  check_frozen(other, two, first);
  for (const int stage : {1, 2, 3}) {
    other.zero_stage = stage;
    check_same_bits(two, train_tiny(other));
  }
  other.zero_stage = 1;
  other.expert = 2;
  const TinyResult spread = train_tiny(other);
  check_frozen(other, spread, first);
  CHECK(spread.plan_bytes == spread.used_bytes);
  TinyOptions copied = other;
  copied.dispatch.replicas = 1;
  const TinyResult copies = train_tiny(copied);
  check_frozen(copied, copies, first);
  CHECK(copies.plan_bytes == copies.used_bytes);
  other.offload.fraction = 1;
  other.ema_decay = 0.9;
  const TinyResult away = train_tiny(other);
  check_frozen(other, away, first);
  const bool same = away.parameters == spread.parameters;
  CHECK(same);
}

TEST_CASE("other optimizers leave frozen parameters alone") {
  TinyOptions o;
  o.ranks = 2;
  o.zero_stage = 1;
  o.optimizer.frozen = {"model.layers.0.*", "lm_head.weight"};
  const NamedTensors first = at_first(o);
  for (const UpdateRule rule : {UpdateRule::lion, UpdateRule::lamb, UpdateRule::adafactor, UpdateRule::muon,
                                UpdateRule::sophia, UpdateRule::adamw8bit}) {
    INFO(update_rule_name(rule));
    o.optimizer.rule = rule;
    o.precision = rule == UpdateRule::adamw8bit ? "fp32" : "fp64";
    check_frozen(o, train_tiny(o), rule == UpdateRule::adamw8bit ? at_first(o) : first);
  }
}
