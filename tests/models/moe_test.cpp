// Identities of an MoE model: one expert, or equal experts, are a dense feed-forward; a uniform
// router's losses; what happens to tokens that all want one expert, and to logits that are not finite.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/models/program_rank.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct MoeRank : ProgramRank {
  TinyOptions options;
  explicit MoeRank(const TinyOptions& o) : ProgramRank(tiny_program(o)), options(o) {}
  StepResult step() {
    OptimizerStep still;
    still.lr = 0;
    return program.train_step(tiny_batches(options, 0, 0), still);
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
void copy_dense(MoeRank& dense, MoeRank& moe) {
  for (int id = 0; id < dense.store().count(); ++id) {
    const std::string& name = dense.store().spec(id).name;
    if (const int to = moe.store().find(name); to >= 0)
      std::copy_n(dense.store().value(id).ptr<double>(), dense.store().value(id).elements(),
                  moe.store().value(to).ptr<double>());
  }
  const int64_t n = 24 * dense.options.hidden;
  for (int64_t e = 0; e < moe.options.moe.num_experts; ++e) {
    double* gate_up = moe.value(kMlp + "experts.gate_up_proj") + e * 2 * n;
    std::copy_n(dense.value(kMlp + "gate_proj.weight"), n, gate_up);
    std::copy_n(dense.value(kMlp + "up_proj.weight"), n, gate_up + n);
    std::copy_n(dense.value(kMlp + "down_proj.weight"), n, moe.value(kMlp + "experts.down_proj") + e * n);
  }
}

}  // namespace

TEST_CASE("one expert, or equal experts with weights that sum to one, are the dense model") {
  TinyOptions plain = job(0, 1);
  MoeRank dense(plain);
  const auto [experts, top_k] = GENERATE(table<int, int>({{1, 1}, {4, 2}, {4, 4}}));
  MoeRank moe(job(experts, top_k));
  copy_dense(dense, moe);
  const StepResult a = dense.step(), b = moe.step();
  CHECK(std::abs(a.loss - b.loss) < 1e-12 * a.loss);
  const int64_t n = 24 * plain.hidden;
  for (int64_t i = 0; i < n; i += 97) {  // experts share the dense gradient
    double down = 0, up = 0;
    for (int64_t e = 0; e < experts; ++e) {
      down += moe.grad(kMlp + "experts.down_proj")[e * n + i];
      up += moe.grad(kMlp + "experts.gate_up_proj")[(2 * e + 1) * n + i];
    }
    CHECK(down == Approx(dense.grad(kMlp + "down_proj.weight")[i]).margin(1e-12));
    CHECK(up == Approx(dense.grad(kMlp + "up_proj.weight")[i]).margin(1e-12));
  }
  moe.value(kMlp + "experts.down_proj")[0] += 0.1;  // negative control
  CHECK(std::abs(moe.step().loss - a.loss) > 1e-9);
}

TEST_CASE("one expert in FP8 is the dense model in FP8, by every recipe") {
  for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::tensorwise, Fp8Recipe::blockwise}) {
    CAPTURE(to_string(recipe));
    TinyOptions plain = job(0, 1), one = job(1, 1);
    for (TinyOptions* o : {&plain, &one}) {
      o->fp8.emplace().recipe = recipe;
      o->seq = 50;  // 200 rows: more than a block, and no multiple of what a product is cut into
    }
    MoeRank dense(plain), moe(one);
    copy_dense(dense, moe);
    const int64_t n = 24 * plain.hidden;
    for (int steps = 0; steps < 2; ++steps) {  // in the second, delayed scaling knows magnitudes
      const StepResult a = dense.step(), b = moe.step();
      CHECK(std::abs(a.loss - b.loss) < 1e-12 * a.loss);
      int apart = 0;
      for (int64_t i = 0; i < n; ++i) {
        const auto differs = [&](double x, double y) { return std::abs(x - y) > 1e-12; };
        apart += differs(dense.grad(kMlp + "down_proj.weight")[i], moe.grad(kMlp + "experts.down_proj")[i]);
        apart +=
            differs(dense.grad(kMlp + "gate_proj.weight")[i], moe.grad(kMlp + "experts.gate_up_proj")[i]);
        apart +=
            differs(dense.grad(kMlp + "up_proj.weight")[i], moe.grad(kMlp + "experts.gate_up_proj")[n + i]);
      }
      CHECK(apart == 0);
    }
    TinyOptions wide = one;  // negative control: experts that are not rounded
    wide.fp8->keep = {"*.experts.*"};
    MoeRank other(wide);
    copy_dense(dense, other);
    CHECK(std::abs(other.step().loss - dense.step().loss) > 1e-7);
  }
}

TEST_CASE("losses of a uniform router and of one that has a single favourite") {
  TinyOptions o = job(4, 1);
  o.moe.balance_coeff = 0.3;
  o.moe.balance = GENERATE(BalanceLoss::switch_loss, BalanceLoss::sequence, BalanceLoss::global,
                           BalanceLoss::uniform, BalanceLoss::hf);
  const bool divergence = o.moe.balance == BalanceLoss::uniform;
  MoeRank r(o);
  std::fill_n(r.value(kMlp + "gate.weight"), 4 * o.hidden, 0.0);
  CHECK(r.step().experts.balance_loss == Approx(divergence ? 0 : 0.3).margin(1e-12));  // all P are 1/4
  // Every logit vector is the norm's output times a column: the favourite of all tokens is expert 2.
  o.moe.num_experts = 2;
  MoeRank one(o);
  std::fill_n(one.value("model.layers.0.post_attention_layernorm.weight"), o.hidden, 0.0);
  const ExpertStatistics s = one.step().experts;  // zero logits: ties go to expert 0
  CHECK(s.chosen[0] == std::vector<double>{96, 0});
  CHECK(s.kept[0] == s.chosen[0]);
  CHECK(s.balance_loss == Approx(divergence ? 0 : 0.3 * 2 * 0.5).margin(1e-12));
}

TEST_CASE("the bias of a router moves by the choices of the global batch, and chooses without weighing") {
  TinyOptions o = job(4, 1);
  o.moe.bias_update_rate = 0.125;
  o.moe.norm_topk_prob = false;
  MoeRank r(o);
  const auto bias = [&] {
    const RegisteredBuffer kept = r.store().kept(true).at(0);
    CHECK(kept.name == kMlp + "gate.e_score_correction_bias");
    return std::vector<double>(kept.tensor.ptr<double>(), kept.tensor.ptr<double>() + 4);
  };
  std::fill_n(r.value(kMlp + "gate.weight"), 4 * o.hidden, 0.0);  // all scores are 1/4: ties go to the lowest
  // Three steps by hand, of 96 tokens that agree: whoever leads by score + bias gets them all and loses 1/8,
  // the others gain it.
  CHECK(bias() == std::vector<double>{0, 0, 0, 0});
  CHECK(r.step().experts.chosen[0] == std::vector<double>{96, 0, 0, 0});
  CHECK(bias() == std::vector<double>{-0.125, 0.125, 0.125, 0.125});
  const StepResult second = r.step();
  CHECK(second.experts.chosen[0] == std::vector<double>{0, 96, 0, 0});
  CHECK(bias() == std::vector<double>{0, 0, 0.25, 0.25});
  CHECK(r.step().experts.chosen[0] == std::vector<double>{0, 0, 96, 0});
  CHECK(bias() == std::vector<double>{0.125, 0.125, 0.125, 0.375});
  // Equal experts: the weight is the score, 1/4, whatever the bias.
  const int64_t n = 24 * o.hidden;
  for (int64_t e = 1; e < 4; ++e) {
    std::copy_n(r.value(kMlp + "experts.down_proj"), n, r.value(kMlp + "experts.down_proj") + e * n);
    std::copy_n(r.value(kMlp + "experts.gate_up_proj"), 2 * n,
                r.value(kMlp + "experts.gate_up_proj") + e * 2 * n);
  }
  const double loss = r.step().loss;
  CHECK(r.step().loss == Approx(loss).epsilon(1e-12));
  // A step without an update moves no bias either.
  o.skip_grad_norm = 1e-9;
  MoeRank skipping(o);
  std::fill_n(skipping.value(kMlp + "gate.weight"), 4 * o.hidden, 0.0);
  CHECK(skipping.step().skipped);
  CHECK(skipping.store().kept(true).at(0).tensor.ptr<double>()[0] == 0);
}

TEST_CASE("expert choice get an even share, of the metrics too, and evaluation looks at no noise") {
  TinyOptions o = job(4, 2);
  o.moe.selection = Selection::expert_choice;
  o.moe.norm_topk_prob = false;
  CHECK(MoeRank(o).step().experts.chosen[0] == std::vector<double>{48, 48, 48, 48});
  CHECK(MoeRank(o).step().experts.kept[0] == std::vector<double>{48, 48, 48, 48});
  // With as many choices as experts every expert takes every token: a softmax over all of them.
  o.moe.top_k = 4;
  const double all = MoeRank(o).step().loss;
  o.moe.selection = Selection::top_k;
  CHECK(MoeRank(o).step().loss == Approx(all).epsilon(1e-12));
}

TEST_CASE("noise and the second expert at random are of training alone") {
  TinyOptions o = job(4, 2), plain = o;
  const bool second = GENERATE(false, true);
  if (second)
    o.moe.selection = Selection::gshard_top2;
  else
    o.moe.jitter_eps = 0.3;
  const auto held_out = [](MoeRank& r) {
    const auto batches = tiny_batches(r.options, 0, 0);
    size_t at = 0;
    return r.program.evaluate([&] { return at < batches.size() ? &batches[at++] : nullptr; });
  };
  MoeRank a(plain), b(o);
  CHECK(held_out(a) == held_out(b));
  const StepResult x = a.step(), y = b.step();
  CHECK(x.loss != y.loss);
  double taken = 0;
  for (double n : y.experts.chosen[0]) taken += n;
  CHECK((second ? taken > 96 && taken < 192 : taken == 192));
  CHECK(y.experts.chosen[0] == y.experts.kept[0]);  // not taken is not dropped
}

TEST_CASE("frozen routers have no gradient, no state and no update, and the rest trains as it did") {
  TinyOptions o = job(4, 2);
  o.precision = GENERATE("fp64", "bf16");
  o.zero_stage = GENERATE(0, 1, 2, 3);
  o.optimizer.freeze_routers = true;
  const auto job_with = [&](bool frozen) {
    TinyOptions with = o;
    with.optimizer.freeze_routers = frozen;
    return train_tiny(with);
  };
  const TinyResult frozen = job_with(true), free = job_with(false);
  const std::string gate = kMlp + "gate.weight";
  CHECK(frozen.gradients.count(gate) == 0);
  CHECK(free.gradients.count(gate) == 1);
  CHECK(frozen.plan_bytes == frozen.used_bytes);
  CHECK(frozen.plan_bytes[0] < free.plan_bytes[0]);
  CHECK(frozen.losses[0] == free.losses[0]);
  CHECK(frozen.parameters.at("lm_head.weight") !=
        free.parameters.at("lm_head.weight"));  // weights are normalised by the clipped norm
  o.steps = 0;
  const TinyResult before = train_tiny(o);
  CHECK(frozen.parameters.at(gate) == before.parameters.at(gate));
  CHECK(free.parameters.at(gate) != before.parameters.at(gate));
  CHECK(frozen.parameters.at("lm_head.weight") != before.parameters.at("lm_head.weight"));
}

TEST_CASE("in the warm-up of routers they move alone, and the others begin afterwards as at a first step") {
  TinyOptions o = job(4, 2);
  o.zero_stage = GENERATE(0, 1, 3);
  o.optimizer.rule = GENERATE(UpdateRule::adamw, UpdateRule::lion, UpdateRule::lamb, UpdateRule::muon);
  o.optimizer.router_warmup = 2;
  const auto after = [&](int64_t steps) {
    TinyOptions with = o;
    with.steps = steps;
    return train_tiny(with);
  };
  const TinyResult start = after(0), warm = after(2), trained = after(3);
  for (const auto& [name, values] : start.parameters) {
    INFO(name);
    const bool router = name == kMlp + "gate.weight";
    CHECK((warm.parameters.at(name) != values) == router);
    CHECK(trained.parameters.at(name) != warm.parameters.at(name));
  }
  // The norm is that of what moves.
  double squares = 0;
  for (double g : warm.gradients.at(kMlp + "gate.weight")) squares += g * g;
  const bool left = o.optimizer.rule == UpdateRule::adamw || o.optimizer.rule == UpdateRule::lion;
  if (left)
    CHECK(warm.norms[0] == Approx(std::sqrt(squares)).epsilon(1e-12));  // others leave directions there
  CHECK(trained.norms[2] > 2 * trained.norms[1]);
  if (o.optimizer.rule != UpdateRule::adamw) return;
  // AdamW's first step is lr times the sign: its bias corrections are those of step 1. Norms do not decay.
  const std::string norm = "model.norm.weight";
  for (size_t i = 0; i < start.parameters.at(norm).size(); ++i)
    CHECK(std::abs(trained.parameters.at(norm)[i] - warm.parameters.at(norm)[i]) ==
          Approx(1e-2).epsilon(1e-2));
}

TEST_CASE("what exceeds the capacity is dropped and counted, and the rest trains") {
  TinyOptions o = job(4, 2);
  o.moe.capacity_factor = 0.5;  // 96 tokens * 2 / 4 * 0.5 = 24 an expert
  const StepResult r = MoeRank(o).step();
  double chosen = 0, kept = 0;
  for (int e = 0; e < 4; ++e) {
    chosen += r.experts.chosen[0][e], kept += r.experts.kept[0][e];
    CHECK(r.experts.kept[0][e] == std::min(24.0, r.experts.chosen[0][e]));
  }
  CHECK(chosen == 192);
  CHECK(kept < chosen);
  o.moe.capacity_factor = 4;  // sum over all tokens
  const StepResult all = MoeRank(o).step();
  o.moe.capacity_factor.reset();
  CHECK(MoeRank(o).step().loss == all.loss);
}

TEST_CASE("router logits that are not finite stop the step before the update, with layer and rank") {
  MoeRank r(job(4, 2));
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
