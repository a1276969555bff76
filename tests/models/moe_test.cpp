// Identities of a mixture of experts: one expert, or equal experts, are a dense feed-forward; a uniform
// router's losses; what happens to tokens that all want one expert, and to logits that are not finite.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct Rank {
  TinyOptions options;
  std::unique_ptr<Stream> compute = make_inline_stream("compute");
  CpuArena arena{64 << 20};
  GroupSet alone;
  TrainProgram program;
  explicit Rank(const TinyOptions& o)
      : options(o), program(tiny_program(o), {*compute, arena, alone.groups()}) {
    program.initialize();
  }
  StepResult step() {
    AdamwArgs still;
    still.lr = 0;
    return program.train_step(tiny_batches(options, 0, 0), still, false);
  }
  double* value(const std::string& name) { return store().value(store().find(name)).ptr<double>(); }
  double* grad(const std::string& name) { return store().grad(store().find(name)).ptr<double>(); }
  ParameterStore& store() { return program.parameters(); }
};

TinyOptions job(int64_t experts, int64_t top_k) {
  TinyOptions o;
  o.layers = 1;
  o.intermediate = 24;
  o.micro_batch = o.global_batch = 4;
  o.moe.num_experts = experts;
  o.moe.top_k = top_k;
  o.moe.intermediate_size = 24;
  return o;
}

const std::string kMlp = "model.layers.0.mlp.";

/// Gives every expert the dense model's weights.
void copy_dense(Rank& dense, Rank& mixture) {
  for (int id = 0; id < dense.store().count(); ++id) {
    const std::string& name = dense.store().spec(id).name;
    if (const int to = mixture.store().find(name); to >= 0)
      std::copy_n(dense.store().value(id).ptr<double>(), dense.store().value(id).elements(),
                  mixture.store().value(to).ptr<double>());
  }
  const int64_t n = 24 * dense.options.hidden;
  for (int64_t e = 0; e < mixture.options.moe.num_experts; ++e) {
    double* gate_up = mixture.value(kMlp + "experts.gate_up_proj") + e * 2 * n;
    std::copy_n(dense.value(kMlp + "gate_proj.weight"), n, gate_up);
    std::copy_n(dense.value(kMlp + "up_proj.weight"), n, gate_up + n);
    std::copy_n(dense.value(kMlp + "down_proj.weight"), n, mixture.value(kMlp + "experts.down_proj") + e * n);
  }
}

}  // namespace

TEST_CASE("one expert, or equal experts with weights that sum to one, are the dense model") {
  TinyOptions plain = job(0, 1);
  Rank dense(plain);
  const auto [experts, top_k] = GENERATE(table<int, int>({{1, 1}, {4, 2}, {4, 4}}));
  Rank mixture(job(experts, top_k));
  copy_dense(dense, mixture);
  const StepResult a = dense.step(), b = mixture.step();
  CHECK(std::abs(a.loss - b.loss) < 1e-12 * a.loss);
  const int64_t n = 24 * plain.hidden;
  for (int64_t i = 0; i < n; i += 97) {  // experts share the dense gradient
    double down = 0, up = 0;
    for (int64_t e = 0; e < experts; ++e) {
      down += mixture.grad(kMlp + "experts.down_proj")[e * n + i];
      up += mixture.grad(kMlp + "experts.gate_up_proj")[(2 * e + 1) * n + i];
    }
    CHECK(down == Approx(dense.grad(kMlp + "down_proj.weight")[i]).margin(1e-12));
    CHECK(up == Approx(dense.grad(kMlp + "up_proj.weight")[i]).margin(1e-12));
  }
  mixture.value(kMlp + "experts.down_proj")[0] += 0.1;  // negative control
  CHECK(std::abs(mixture.step().loss - a.loss) > 1e-9);
}

TEST_CASE("losses of a uniform router and of one that has a single favourite") {
  TinyOptions o = job(4, 1);
  o.moe.balance_coeff = 0.3;
  o.moe.balance = GENERATE("switch", "sequence", "global", "uniform");
  const bool divergence = o.moe.balance == "uniform";
  Rank r(o);
  std::fill_n(r.value(kMlp + "gate.weight"), 4 * o.hidden, 0.0);
  CHECK(r.step().experts.balance_loss == Approx(divergence ? 0 : 0.3).margin(1e-12));  // all P are 1/4
  // Every logit vector is the norm's output times a column: the favourite of all tokens is expert 2.
  o.moe.num_experts = 2;
  Rank one(o);
  std::fill_n(one.value("model.layers.0.post_attention_layernorm.weight"), o.hidden, 0.0);
  const ExpertStatistics s = one.step().experts;  // zero logits: ties go to expert 0
  CHECK(s.chosen[0] == std::vector<double>{96, 0});
  CHECK(s.kept[0] == s.chosen[0]);
  CHECK(s.balance_loss == Approx(divergence ? 0 : 0.3 * 2 * 0.5).margin(1e-12));
}

TEST_CASE("what exceeds the capacity is dropped and counted, and the rest trains") {
  TinyOptions o = job(4, 2);
  o.moe.capacity_factor = 0.5;  // 96 tokens * 2 / 4 * 0.5 = 24 an expert
  const StepResult r = Rank(o).step();
  double chosen = 0, kept = 0;
  for (int e = 0; e < 4; ++e) {
    chosen += r.experts.chosen[0][e], kept += r.experts.kept[0][e];
    CHECK(r.experts.kept[0][e] == std::min(24.0, r.experts.chosen[0][e]));
  }
  CHECK(chosen == 192);
  CHECK(kept < chosen);
  o.moe.capacity_factor = 4;  // of all tokens
  const StepResult all = Rank(o).step();
  o.moe.capacity_factor.reset();
  CHECK(Rank(o).step().loss == all.loss);
}

TEST_CASE("router logits that are not finite stop the step before the update, with layer and rank") {
  Rank r(job(4, 2));
  r.value(kMlp + "gate.weight")[3] = std::nan("");
  const double before = r.value("lm_head.weight")[0];
  try {
    r.step();
    FAIL("accepted");
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::no_progress);
    CHECK_THAT(e.what(),
               Catch::Contains("layers.0: the router's logits of token 0") && Catch::Contains("rank 0"));
  }
  CHECK(r.value("lm_head.weight")[0] == before);
}
