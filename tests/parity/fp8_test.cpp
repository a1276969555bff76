// Linear layers of FP8 under every layout: in fp64 around them, so that what differs is what ranks
// round apart, and not the order of sums.
#include <algorithm>

#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions fp8_job(Fp8Recipe recipe) {
  TinyOptions o;
  o.layers = 4;
  o.fp8.emplace();
  o.fp8->recipe = recipe;
  o.fp8->history = 2;
  return o;
}

void require_exact_memory(const TinyResult& r) {
  CHECK(r.used_bytes == r.plan_bytes);
  CHECK(r.used_wire == r.plan_wire);
}

}  // namespace

TEST_CASE("FP8 under every layout equals one process, by delayed and by current scaling") {
  for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::tensorwise})
    for (const std::string architecture : {"llama", "gpt2"}) {
      CAPTURE(static_cast<int>(recipe), architecture);
      TinyOptions o = fp8_job(recipe);
      o.architecture = architecture;
      const TinyResult one = train_tiny(o);
      const auto check = [&](const char* what, auto change) {
        CAPTURE(what);
        TinyOptions m = o;
        change(m);
        const TinyResult many = train_tiny(m);
        require_parity(one, many, 1e-11);
        require_exact_memory(many);
      };
      check("data", [](TinyOptions& m) { m.ranks = 2; });
      for (int stage : {1, 2, 3}) check("ZeRO", [&](TinyOptions& m) { m.ranks = 2, m.zero_stage = stage; });
      check("two levels", [](TinyOptions& m) { m.ranks = 4, m.shard = 2; });
      check("tensor", [](TinyOptions& m) { m.tensor = 2; });
      check("tensor, sequence", [](TinyOptions& m) { m.tensor = 2, m.sequence_parallel = true; });
      check("pipeline", [](TinyOptions& m) { m.pipeline = 2; });
      check("pipeline, zero bubble", [](TinyOptions& m) { m.pipeline = 2, m.schedule = "zb-h1"; });
      check("hybrid", [](TinyOptions& m) { m.tensor = m.pipeline = m.ranks = 2, m.zero_stage = 1; });
      check("recompute", [](TinyOptions& m) { m.recompute.run = 1; });
      if (architecture == "gpt2") continue;
      check("context", [](TinyOptions& m) { m.context = 2; });
      check("context, all to all", [](TinyOptions& m) { m.context = 2, m.context_comm = "a2a"; });
    }
}

TEST_CASE(
    "weights of FP8 rounded once a step: the bits of weights rounded at each use, in memory of their own") {
  for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::tensorwise, Fp8Recipe::blockwise}) {
    CAPTURE(static_cast<int>(recipe));
    TinyOptions o = fp8_job(recipe);
    o.ranks = 2;
    const auto rounded_bytes = [](const TinyOptions& of) {
      MetaJob meta(of, 0);
      meta.program.train_step({}, tiny_adamw(1));
      return meta.memory.peak().by_kind[static_cast<int>(MemoryKind::fp8_weights)];
    };
    TinyOptions once = o, each = o;
    once.zero_stage = 2, each.zero_stage = 3;  // releases the weights
    for (const int64_t recomputed : {0, 1}) {
      once.recompute.run = each.recompute.run = recomputed;
      const TinyResult a = train_tiny(once), b = train_tiny(each);
      check_same_bits(a, b);
      require_exact_memory(a);
    }
    // Weights of q, k and v, output, gate and up, and down, plain and transposed.
    const int64_t weights = 64 * 32 + 32 * 32 + 2 * 40 * 32 + 32 * 40;
    const int64_t steps = recipe == Fp8Recipe::blockwise    ? 8 * 64
                          : recipe == Fp8Recipe::tensorwise ? 4 * 64
                                                            : 0;
    CHECK(rounded_bytes(once) == o.layers * (2 * weights + steps));
    CHECK(rounded_bytes(each) == 0);
    once.micro_batch = once.global_batch / once.ranks;  // one a step
    CHECK(rounded_bytes(once) == 0);
  }
}

TEST_CASE("weights of FP8 are rounded again where Sophia moves them for its own pass") {
  TinyOptions once = fp8_job(Fp8Recipe::delayed);
  once.optimizer.rule = UpdateRule::sophia;
  once.optimizer.hessian_estimator = HessianEstimator::hutchinson;
  once.optimizer.hessian_interval = 2;
  once.optimizer.sophia_gamma = 1;
  once.optimizer.hessian_radius = 0.05;  // beyond what rounding hides
  once.ranks = 2, once.steps = 4;
  TinyOptions each = once;
  once.zero_stage = 2, each.zero_stage = 3;
  check_same_bits(train_tiny(once), train_tiny(each));
  // With drawn labels they stay, and the codes of the first pass with them.
  once.optimizer.hessian_estimator = each.optimizer.hessian_estimator = HessianEstimator::gauss_newton;
  check_same_bits(train_tiny(once), train_tiny(each));
}

TEST_CASE("what FP8 products read is kept rounded where their steps are known before") {
  const auto kept = [](Fp8Recipe recipe, bool eight) {
    TinyOptions o = fp8_job(recipe);
    if (!eight) o.fp8.reset();
    MetaJob meta(o, 0);
    meta.program.train_step({}, tiny_adamw(1));
    return meta.memory.peak().most_by_kind[static_cast<int>(MemoryKind::activations)];
  };
  const int64_t current = kept(Fp8Recipe::tensorwise, true), delayed = kept(Fp8Recipe::delayed, true);
  CHECK(current == kept(Fp8Recipe::tensorwise, false));
  // In fp64 an element is of eight bytes: of two norms and SwiGLU in four layers seven are saved.
  CHECK(current - delayed == 4 * 24 * (2 * 32 + 40) * 7);
}

TEST_CASE("SwiGLU's gradient has the same bits where it is written rounded for FP8 products") {
  TinyOptions o = fp8_job(Fp8Recipe::delayed);
  o.precision = "bf16", o.pipeline = 2;
  const int64_t all = 2 * 8;  // layers of a stage and micro-batches
  const auto calls = [](const TinyOptions& of, std::string_view op) {
    MetaJob meta(of, 0);
    meta.program.train_step({}, tiny_adamw(1));
    return std::count_if(meta.trace.entries().begin(), meta.trace.entries().end(),
                         [&](const TraceEntry& e) { return e.name == op; });
  };
  const auto check = [&](const char* what, int64_t rounded, auto change) {
    CAPTURE(what);
    TinyOptions m = o;
    change(m);
    CHECK(calls(m, "swiglu_backward_fp8") == rounded);
    CHECK(calls(m, "swiglu_backward") == all - rounded);
    return m;
  };
  const TinyOptions written = check("delayed", all, [](TinyOptions&) {});
  // The gradient of the weight follows later and needs the gradient itself.
  const TinyOptions later = check("zero bubble", 0, [](TinyOptions& m) { m.schedule = "zb-h1"; });
  check("current", 0, [](TinyOptions& m) { m.fp8->recipe = Fp8Recipe::tensorwise; });
  check("frozen", 0, [](TinyOptions& m) { m.optimizer.frozen = {"*mlp*"}; });
  const TinyResult a = train_tiny(written), b = train_tiny(later);
  check_same_bits(a, b);
  require_exact_memory(a);
  require_exact_memory(b);
}

TEST_CASE("blocks of FP8 under layouts that do not cut them equal one process") {
  TinyOptions o = fp8_job(Fp8Recipe::blockwise);
  o.hidden = 256, o.heads = 2, o.kv_heads = 2, o.intermediate = 256, o.layers = 2, o.steps = 2;
  o.global_batch = 4;
  const TinyResult one = train_tiny(o);
  const auto check = [&](auto change) {
    TinyOptions m = o;
    change(m);
    const TinyResult many = train_tiny(m);
    require_parity(one, many, 1e-11);
    require_exact_memory(many);
  };
  check([](TinyOptions& m) { m.ranks = 2, m.zero_stage = 3; });
  check([](TinyOptions& m) { m.tensor = 2, m.sequence_parallel = true; });
  check([](TinyOptions& m) { m.pipeline = 2; });
}

TEST_CASE("what FP8 changes is seen: formats, kept layers, recipes, and ranks that do not agree") {
  TinyOptions o = fp8_job(Fp8Recipe::tensorwise);
  const TinyResult all = train_tiny(o);
  const auto loss = [&](auto change) {
    TinyOptions m = o;
    change(m);
    return train_tiny(m).losses.back();
  };
  const double plain = loss([](TinyOptions& m) { m.fp8.reset(); });
  CHECK(std::abs(all.losses.back() - plain) > 1e-5);
  CHECK(std::abs(all.losses.back() / plain - 1) < 0.05);
  const auto differs = [&](auto change) {
    const double l = loss(change);
    CHECK(std::abs(l - all.losses.back()) > 1e-7);
    CHECK(std::abs(l - plain) > 1e-7);
  };
  differs([](TinyOptions& m) { m.fp8->hybrid = false; });
  differs([](TinyOptions& m) { m.fp8->keep = {"*.mlp.down_proj.weight"}; });
  differs([](TinyOptions& m) { m.fp8->first_layers = 1; });
  differs([](TinyOptions& m) { m.fp8->last_layers = 1; });
  differs([](TinyOptions& m) { m.fp8->recipe = Fp8Recipe::delayed; });
  CHECK(loss([](TinyOptions& m) { m.fp8->keep = {"*"}; }) == plain);
  CHECK(loss([](TinyOptions& m) { m.fp8->first_layers = 4; }) == plain);
  // With micro-batches of another size current scaling sees other tensors; delayed scaling does not.
  const auto apart = [&](Fp8Recipe recipe) {
    TinyOptions a = fp8_job(recipe), b = a;
    b.micro_batch = 4;
    return std::abs(train_tiny(a).losses.back() - train_tiny(b).losses.back());
  };
  CHECK(apart(Fp8Recipe::delayed) < 1e-11);
}

TEST_CASE("adapters beside frozen weights in FP8: every layout equals one process, by each scaling") {
  for (const std::string architecture : {"llama", "qwen3_moe"})
    for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::tensorwise}) {
      if (architecture == "qwen3_moe" && recipe == Fp8Recipe::tensorwise) continue;
      CAPTURE(architecture, static_cast<int>(recipe));
      TinyOptions o = fp8_job(recipe);
      o.architecture = architecture;
      o.lora.rank = 4;
      o.lora.alpha = 6;
      if (architecture == "qwen3_moe") {
        o.moe.num_experts = 4;
        o.lora.target_modules = {"q_proj", "o_proj", "*.experts.*"};
      } else {
        o.lora.dropout = 0.1;
      }
      const TinyResult one = train_tiny(o);
      TinyOptions plain = o, none = o;
      plain.fp8.reset();
      none.lora = {};
      const double wide = train_tiny(plain).losses.back();
      CHECK(std::abs(one.losses.back() - wide) > 1e-6);
      CHECK(std::abs(one.losses.back() / wide - 1) < 0.05);
      // B is zero at first; where the step is not known yet, codes and values are rounded by the same step.
      CHECK(std::abs(one.losses[0] - train_tiny(none).losses[0]) < 1e-12);
      const auto check = [&](const char* what, auto change) {
        CAPTURE(what);
        TinyOptions m = o;
        change(m);
        const TinyResult many = train_tiny(m);
        require_parity(one, many, 1e-11);
        CHECK(many.used_bytes == many.plan_bytes);
      };
      check("data, ZeRO-1", [](TinyOptions& m) { m.ranks = 2, m.zero_stage = 1; });
      check("ZeRO-3", [](TinyOptions& m) { m.ranks = 2, m.zero_stage = 3; });
      check("tensor, sequence", [](TinyOptions& m) { m.tensor = 2, m.sequence_parallel = true; });
      check("tensor", [](TinyOptions& m) { m.tensor = 2; });
      check("pipeline, zero bubble", [](TinyOptions& m) { m.pipeline = 2, m.schedule = "zb-h1"; });
      check("recompute", [](TinyOptions& m) { m.recompute.run = 1; });
      check("context", [](TinyOptions& m) { m.context = 2; });
      if (architecture == "qwen3_moe") check("expert", [](TinyOptions& m) { m.ranks = m.expert = 2; });
    }
}

TEST_CASE("bf16 with linear layers of FP8 trains as bf16 does") {
  require_exact_memory(check_fp8_follows_bf16(
      fp8_job(Fp8Recipe::delayed), [](TinyOptions& o) { o.tensor = o.ranks = 2, o.zero_stage = 2; }));
}

TEST_CASE("a run changes between bf16 and FP8, and between fp32 and tf32, in memory that holds both") {
  for (const std::string precision : {"bf16", "fp32"}) {
    CAPTURE(precision);
    const bool eight = precision == "bf16";
    const MatmulPrecision low = eight ? MatmulPrecision::fp8 : MatmulPrecision::tf32;
    TinyOptions o;
    o.precision = precision;
    if (eight) o.fp8.emplace();
    o.steps = 4;
    o.products = {low, low, MatmulPrecision::plain, MatmulPrecision::plain};
    const TinyResult both = train_tiny(o);
    require_exact_memory(both);
    TinyOptions first = o, second = o;
    first.products = {low, low, low, low};
    second.products = {MatmulPrecision::plain, MatmulPrecision::plain, MatmulPrecision::plain,
                       MatmulPrecision::plain};
    const TinyResult only = train_tiny(first), plain = train_tiny(second);
    CHECK(both.losses[1] == only.losses[1]);
    CHECK(both.losses[0] != plain.losses[0]);
    CHECK(both.losses[3] != only.losses[3]);
    CHECK(both.losses[3] != plain.losses[3]);
    CHECK(std::abs(only.losses[3] / plain.losses[3] - 1) < (eight ? 0.03 : 2e-3));
    std::swap(o.products[0], o.products[2]);  // up and down, over ranks
    o.ranks = o.tensor = 2, o.zero_stage = 3;
    require_exact_memory(train_tiny(o));
  }
}

TEST_CASE("gradients of bf16: every stage of ZeRO and accumulation, in planned memory") {
  TinyOptions o;
  o.precision = "bf16";
  o.tied = true;  // two contributions to one gradient
  const TinyResult wide = train_tiny(o);
  o.bf16_gradients = true;
  const TinyResult one = train_tiny(o);
  require_exact_memory(one);
  CHECK(one.plan_bytes[0] != wide.plan_bytes[0]);
  CHECK(one.losses[0] == wide.losses[0]);
  CHECK(one.gradients != wide.gradients);
  CHECK(worst_relative(wide.gradients, one.gradients) < 0.05);
  for (size_t i = 0; i < one.losses.size(); ++i) CHECK(std::abs(one.losses[i] / wide.losses[i] - 1) < 2e-2);
  for (const auto& [name, values] : one.gradients)
    for (double v : values) REQUIRE(static_cast<double>(bf16(static_cast<float>(v))) == v);
  // One micro-batch is rounded once, so that every loss of a rounding shows.
  TinyOptions single = o;
  single.micro_batch = single.global_batch;
  TinyOptions exact = single;
  exact.bf16_gradients = false;
  const TinyResult rounded = train_tiny(single), whole = train_tiny(exact);
  int apart = 0;
  for (const auto& [name, values] : whole.gradients)
    for (size_t i = 0; i < values.size(); ++i)
      apart += static_cast<double>(bf16(static_cast<float>(values[i]))) != rounded.gradients.at(name)[i];
  CHECK(apart == 0);
  o.tied = false;
  const TinyResult base = train_tiny(o);
  const auto check = [&](const char* what, auto change) {
    CAPTURE(what);
    TinyOptions m = o;
    change(m);
    const TinyResult r = train_tiny(m);
    require_exact_memory(r);
    for (size_t i = 0; i < r.losses.size(); ++i) CHECK(std::abs(r.losses[i] / base.losses[i] - 1) < 2e-2);
    return r;
  };
  const TinyResult data = check("data", [](TinyOptions& m) { m.ranks = 2; });
  const TinyResult stage1 = check("ZeRO-1", [](TinyOptions& m) { m.ranks = 2, m.zero_stage = 1; });
  check_same_bits(data, stage1);
  for (int stage : {2, 3}) check("ZeRO", [&](TinyOptions& m) { m.ranks = 2, m.zero_stage = stage; });
  check("tensor", [](TinyOptions& m) { m.tensor = 2, m.sequence_parallel = true; });
  check("pipeline, zero bubble", [](TinyOptions& m) { m.pipeline = 2, m.schedule = "zb-h1"; });
  check("moments and weights of bf16 as well", [](TinyOptions& m) { m.bf16_states = true; });
  check("offloaded", [](TinyOptions& m) { m.offload = {0.5, 96}; });
}
