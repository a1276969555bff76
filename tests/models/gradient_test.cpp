// The hand-written backward of whole models against central differences, in double.
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/tensor/rng.h"
#include "tests/models/program_rank.h"
#include "tests/support/made_up_families.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Largest error of the analytic gradient of `probes` elements of each parameter, relative to the largest
/// gradient of that parameter. `spoil` scales the analytic one, for the negative control.
double worst_error(const TinyOptions& o, int probes, double spoil = 1) {
  ProgramRank rank(tiny_program(o));
  OptimizerStep still;  // lr 0: parameters stay
  still.lr = 0;
  const auto batches = tiny_batches(o, 0, 0);
  rank.program.train_step(batches, still);
  ParameterStore& store = rank.program.parameters();
  std::vector<std::vector<double>> analytic(store.count());
  for (int id = 0; id < store.count(); ++id) {
    const Tensor g = store.grad(id);
    analytic[id].assign(g.ptr<double>(), g.ptr<double>() + g.elements());
  }
  double worst = 0;
  for (int id = 0; id < store.count(); ++id) {
    double largest = 1e-6;
    for (int part = 0; part < store.count(); ++part)  // gpt2's q, k and v are one; a key bias has no gradient
      if (store.spec(part).name == store.spec(id).name)
        for (double g : analytic[part]) largest = std::max(largest, std::abs(g));
    for (int probe = 0; probe < probes; ++probe) {
      const int64_t i =
          philox(3, static_cast<uint64_t>(id), static_cast<uint64_t>(probe)).v[0] % analytic[id].size();
      double* w = store.value(id).ptr<double>() + i;
      const double h = 1e-4, before = *w;
      const auto loss_at = [&](double v) {
        *w = v;
        const StepResult r = rank.program.train_step(batches, still);
        return r.loss + r.mean("z_loss") + o.modules_scale * r.mean("mtp_loss") + r.experts.balance_loss +
               r.experts.z_loss + r.experts.entropy_loss;
      };
      // Four points: the error of the difference itself is far below the tolerance. What is left is the
      // loss's own rounding over h, which norms after sublayers make largest: 1e-8 of the gradient.
      const double numeric = (8 * (loss_at(before + h) - loss_at(before - h)) -
                              (loss_at(before + 2 * h) - loss_at(before - 2 * h))) /
                             (12 * h);
      *w = before;
      worst = std::max(worst, std::abs(numeric - spoil * analytic[id][i]) / largest);
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("gradients of whole models equal central differences") {
  TinyOptions o;
  o.global_batch = 2;
  o.micro_batch = 2;
  o.seq = 11;
  o.vocab = 37;
  o.padded_targets = true;
  o.architecture = GENERATE(as<std::string>(), "llama", "gpt2");
  SECTION("plain") {}
  SECTION("tied, accumulated") {
    o.tied = true;
    o.micro_batch = 1;
  }
  SECTION("with dropout") { o.dropout = 0.3; }
  SECTION("with a z-loss on output logits") { o.z_loss_coeff = 0.1; }
  SECTION("attention over several tiles") { o.seq = 100, o.dropout = 0.1; }
  SECTION("packed documents") { o.seq = 70, o.dropout = 0.1, o.packed = true; }
  CHECK(worst_error(o, 3) < 1e-7);
}

TEST_CASE("gradients of a family with any one trait other than llama's equal central differences") {
  TinyOptions o;
  o.global_batch = 2;
  o.micro_batch = 2;
  o.seq = 11;
  o.vocab = 37;
  o.padded_targets = true;
  for (const Family& f : made_up_families()) {
    INFO(f.name);
    o.family = &f;
    CHECK(worst_error(o, 3) < 1e-7);
  }
}

TEST_CASE("gradients of layers with windows and of layers without positions equal central differences") {
  TinyOptions o;
  o.global_batch = 2;
  o.micro_batch = 2;
  o.seq = 100;  // several tiles
  o.vocab = 37;
  o.padded_targets = true;
  o.without_positions = true;
  SECTION("no window") {}
  SECTION("a window within a tile, dropout") { o.window = 5, o.dropout = 0.1; }
  SECTION("a window over tiles") { o.window = 70; }
  SECTION("packed documents") { o.window = 20, o.packed = true; }
  CHECK(worst_error(o, 3) < 1e-7);
}

TEST_CASE("gradients of MoE models, with every loss for balance, equal central differences") {
  TinyOptions o;
  o.global_batch = 2;
  o.micro_batch = 2;
  o.seq = 11;
  o.vocab = 37;
  o.layers = 1;
  o.architecture = "llama";
  o.moe.num_experts = 4;
  o.moe.z_loss_coeff = 0.02;
  o.moe.balance_coeff = 0.3;  // comparable to the rest, so that an error is seen
  SECTION("mixtral, Switch loss") { o.architecture = "mixtral", o.moe.balance = BalanceLoss::switch_loss; }
  SECTION("qwen3_moe, loss of sequences") {
    o.architecture = "qwen3_moe", o.moe.balance = BalanceLoss::sequence;
  }
  SECTION("olmoe, divergence from uniform") {
    o.architecture = "olmoe", o.moe.balance = BalanceLoss::uniform, o.moe.norm_topk_prob = false;
  }
  SECTION("sigmoid scores of groups, scaled, gated shared experts, accumulated") {
    o.moe.score = RouterScore::sigmoid, o.moe.routed_scaling_factor = 1.7, o.moe.n_group = 2,
    o.moe.topk_group = 1;
    o.moe.shared_experts = 2, o.moe.shared_expert_gate = true;
    o.moe.balance = BalanceLoss::switch_loss, o.micro_batch = 1;
  }
  SECTION("softmax of the chosen, with a capacity, every second layer, shared experts") {
    o.moe.order = RouterOrder::topk_first, o.moe.capacity_factor = 0.6, o.moe.layer_step = 2, o.layers = 2;
    o.moe.shared_experts = 1;
  }
  SECTION("Switch: one expert, and noise on what the router reads") {
    o.moe.top_k = 1, o.moe.norm_topk_prob = false, o.moe.jitter_eps = 0.3,
    o.moe.balance = BalanceLoss::switch_loss;
  }
  SECTION("GShard's random second expert, with a capacity") {
    o.moe.selection = Selection::gshard_top2, o.moe.second_threshold = 0.8, o.moe.capacity_factor = 1.0;
    o.moe.balance = BalanceLoss::global;
  }
  SECTION("transformers' loss over the tokens of all layers, accumulated") {
    o.moe.balance = BalanceLoss::hf, o.moe.balance_coeff = 0.3, o.layers = 3, o.moe.dense_layers = {1},
    o.micro_batch = 1;
  }
  SECTION("gpt_oss: biases of router and experts, sinks") {
    o.architecture = "gpt_oss", o.moe.balance = BalanceLoss::hf, o.layers = 2;
  }
  SECTION("deepseek_v3: latents, shared experts, groups by score and bias") {
    o.architecture = "deepseek_v3", o.layers = 2, o.moe.dense_layers = {0}, o.moe.shared_experts = 1;
    o.moe.score = RouterScore::sigmoid, o.moe.n_group = 2, o.moe.topk_group = 1;
  }
  SECTION("deepseek_v2: queries without a latent") {
    o.architecture = "deepseek_v2", o.no_query_latent = true, o.moe.norm_topk_prob = false;
    o.moe.shared_experts = 2, o.moe.balance = BalanceLoss::sequence;
  }
  SECTION("top-p, which takes one or two experts") {
    o.moe.selection = Selection::top_p, o.moe.top_p = 0.4, o.moe.norm_topk_prob = false;
    o.moe.balance = BalanceLoss::switch_loss;
  }
  SECTION("zero experts and the entropy of their scores") {
    o.moe.zero_experts = 3, o.moe.top_k = 3, o.moe.routed_scaling_factor = 1.7, o.moe.norm_topk_prob = false;
    o.moe.balance = BalanceLoss::switch_loss, o.moe.entropy_coeff = 0.2, o.moe.shared_experts = 1;
  }
  SECTION("zero experts of sigmoid scores, renormalised, with a capacity and top-p") {
    o.moe.zero_experts = 2, o.moe.top_k = 3, o.moe.score = RouterScore::sigmoid;
    o.moe.selection = Selection::top_p, o.moe.top_p = 0.5, o.moe.norm_topk_prob = true;
    o.moe.capacity_factor = 0.8, o.moe.entropy_coeff = 0.2, o.micro_batch = 1;
  }
  SECTION("expert choice") { o.moe.selection = Selection::expert_choice, o.moe.norm_topk_prob = false; }
  CHECK(worst_error(o, 3) < 1e-7);
}

TEST_CASE("gradients of multi-token prediction equal central differences") {
  TinyOptions o;
  o.architecture = "deepseek_v3";
  o.global_batch = o.micro_batch = 2;
  o.seq = 11;
  o.vocab = 37;
  o.padded_targets = true;
  o.layers = 2;
  o.moe.num_experts = 4;
  o.moe.dense_layers = {0};
  o.moe.score = RouterScore::sigmoid;
  o.modules = 2;
  o.modules_scale = 5;  // in short documents scores hardly matter: their gradients stay above rounding
  o.packed = true;
  CHECK(worst_error(o, 3) < 1e-7);
  o.packed = false;
  o.modules = 1;
  o.tied = true;
  o.micro_batch = 1;
  o.moe.shared_experts = 1;
  o.moe.balance = BalanceLoss::sequence;
  CHECK(worst_error(o, 3) < 1e-7);
}

TEST_CASE("negative control: a gradient that is 0.1 % off is seen") {
  TinyOptions o;
  o.global_batch = 2;
  o.micro_batch = 2;
  o.seq = 11;
  CHECK(worst_error(o, 2, 1.001) > 1e-5);
}
