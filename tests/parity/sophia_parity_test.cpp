// Sophia in whole jobs: layouts agree with one rank, stages of ZeRO to the bit, plans with runs; what the
// estimate with drawn labels is of.
#include <numeric>

#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr auto kHutchinson = HessianEstimator::hutchinson, kGaussNewton = HessianEstimator::gauss_newton;

TinyOptions sophia_job(HessianEstimator estimator) {
  TinyOptions o;
  o.optimizer.rule = UpdateRule::sophia;
  o.optimizer.hessian_estimator = estimator;
  o.optimizer.hessian_interval = 2;
  o.optimizer.sophia_gamma = 1;
  o.optimizer.hessian_radius = 1e-4;
  o.global_batch = 4;
  o.kv_heads = 2;
  o.dropout = 0.1;
  return o;
}

/// The average of estimates after the last step, by parameter.
NamedTensors hessians(const TinyOptions& o) {
  NamedTensors all;
  TinyHooks hooks;
  hooks.end = [&](const TinyRank& rank) {
    const ParameterStore& store = rank.program.parameters();
    for (const OwnedPiece& p : store.owned_pieces())
      for (const NamedState& m : p.moments)
        if (m.name == "hessian") {
          std::vector<double>& to = all[store.spec(p.id).name];
          for (int64_t i = 0; i < m.tensor.elements(); ++i)
            to.push_back(m.tensor.dtype == DType::f64 ? m.tensor.ptr<double>()[i] : m.tensor.ptr<float>()[i]);
        }
  };
  train_tiny(o, {}, hooks);
  return all;
}

}  // namespace

TEST_CASE("Sophia by Hutchinson: layouts agree with one rank, and plans with runs") {
  for (const char* architecture : {"llama", "gpt2"}) {
    TinyOptions one = sophia_job(kHutchinson);
    one.architecture = architecture;
    if (one.architecture == "gpt2") one.kv_heads = 0;
    const TinyResult want = train_tiny(one);
    const auto check = [&](const char* name, const std::function<void(TinyOptions&)>& change) {
      TinyOptions o = one;
      change(o);
      INFO(architecture << ", " << name);
      const TinyResult got = train_tiny(o);
      for (size_t i = 0; i < want.losses.size(); ++i)
        CHECK(std::abs(got.losses[i] - want.losses[i]) <= 1e-7 * want.losses[i]);
      CHECK(std::abs(got.eval_loss - want.eval_loss) <= 1e-7 * want.eval_loss);
      CHECK(got.plan_bytes == got.used_bytes);
      CHECK(got.plan_wire == got.used_wire);
    };
    check("one", [](TinyOptions&) {});
    check("tensor 4, sequence, ZeRO-1",
          [](TinyOptions& o) { o.tensor = 4, o.sequence_parallel = true, o.ranks = 2, o.zero_stage = 1; });
    check("pipeline 2, ZeRO-2", [](TinyOptions& o) { o.pipeline = 2, o.ranks = 2, o.zero_stage = 2; });
    check("context 2, ZeRO-3", [](TinyOptions& o) { o.context = 2, o.zero_stage = 3, o.dropout = 0.1; });
    check("2d", [](TinyOptions& o) { o.tensor = 4, o.tensor_mode = "2d", o.micro_batch = 2; });
    check("full recompute", [](TinyOptions& o) { o.recompute.run = 1; });
    check("activations that leave", [](TinyOptions& o) {
      o.layers = 2;
      o.activations.fraction = 1;
      o.activations.input = true;
    });
    TinyOptions other = one;
    other.optimizer.hessian_interval = 3;  // one estimate in three steps where there were two
    CHECK(std::abs(train_tiny(other).eval_loss - want.eval_loss) > 1e-6 * want.eval_loss);
  }
}

TEST_CASE("Sophia with drawn labels: layouts agree with one rank to 1e-12, and plans with runs") {
  const auto compare = [](const TinyOptions& one, const std::vector<NamedLayout>& layouts) {
    const TinyResult want = train_tiny(one);
    for (const NamedLayout& l : layouts) {
      TinyOptions o = one;
      l.set(o);
      INFO(one.architecture << ", " << l.name);
      const TinyResult got = train_tiny(o);
      require_parity(want, got, 1e-12);
      CHECK(got.plan_bytes == got.used_bytes);
      // Rows go where routers send them.
      if (o.moe.num_experts == 0) CHECK(got.plan_wire == got.used_wire);
    }
  };
  for (const char* architecture : {"llama", "gpt2", "gemma2"}) {
    TinyOptions one = sophia_job(kGaussNewton);
    one.architecture = architecture;
    one.padded_targets = true;
    if (one.architecture == "gpt2") one.kv_heads = 0;
    const bool capped = one.architecture == "gemma2";  // logits of a soft-cap
    if (capped) one.dropout = 0;
    std::vector<NamedLayout> layouts{
        {"one", [](TinyOptions&) {}},
        {"micro-batches of 4", [](TinyOptions& o) { o.micro_batch = 4; }},
        {"chunks of logits", [](TinyOptions& o) { o.logits_chunk.rows = 5; }},
        {"tensor 4, sequence, ZeRO-1",
         [](TinyOptions& o) { o.tensor = 4, o.sequence_parallel = true, o.ranks = 2, o.zero_stage = 1; }},
        {"pipeline 2, ZeRO-2", [](TinyOptions& o) { o.pipeline = 2, o.ranks = 2, o.zero_stage = 2; }},
        {"hybrid, ZeRO-3", [](TinyOptions& o) { o.ranks = 4, o.shard = 2, o.zero_stage = 3; }},
        {"full recompute", [](TinyOptions& o) { o.recompute.run = 1; }}};
    if (!capped) {
      layouts.push_back({"context 2, ZeRO-3", [](TinyOptions& o) { o.context = 2, o.zero_stage = 3; }});
      layouts.push_back(
          {"2d", [](TinyOptions& o) { o.tensor = 4, o.tensor_mode = "2d", o.micro_batch = 2; }});
      layouts.push_back(
          {"3d", [](TinyOptions& o) { o.tensor = 8, o.tensor_mode = "3d", o.micro_batch = 4; }});
      layouts.push_back({"zero bubble", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zb-h1"; }});
      layouts.push_back({"micro-batches by turns", [](TinyOptions& o) { o.interleaved = true; }});
    }
    compare(one, layouts);
  }
  TinyOptions experts = sophia_job(kGaussNewton);
  experts.architecture = "mixtral";
  experts.kv_heads = 0, experts.dropout = 0;
  experts.moe.num_experts = 8;
  experts.moe.balance = BalanceLoss::switch_loss;
  experts.moe.balance_coeff = 0.1, experts.moe.z_loss_coeff = 0.01;
  experts.micro_batch = experts.global_batch = 4;
  compare(experts, {{"expert 2, ZeRO-1",
                     [](TinyOptions& o) { o.ranks = o.expert = 2, o.micro_batch = 2, o.zero_stage = 1; }},
                    {"tensor 2", [](TinyOptions& o) { o.tensor = 2; }}});
  TinyOptions modules = sophia_job(kGaussNewton);
  modules.architecture = "deepseek_v3";
  modules.moe.num_experts = 4, modules.moe.dense_layers = {0}, modules.moe.score = RouterScore::sigmoid;
  modules.modules = 2, modules.dropout = 0, modules.kv_heads = 0;
  compare(modules, {{"data 2, ZeRO-3", [](TinyOptions& o) { o.ranks = 2, o.zero_stage = 3; }},
                    {"tensor 2, pipeline 2", [](TinyOptions& o) { o.tensor = o.pipeline = 2; }}});
}

TEST_CASE("Sophia's estimate is of the tokens' losses, each as it weighs in the objective") {
  TinyOptions o = sophia_job(kGaussNewton);
  o.architecture = "deepseek_v3";
  o.moe.num_experts = 4, o.moe.dense_layers = {0}, o.moe.score = RouterScore::sigmoid;
  o.moe.balance = BalanceLoss::sequence;
  o.modules = 1, o.dropout = 0, o.kv_heads = 0, o.steps = 1;
  const NamedTensors want = hessians(o);
  REQUIRE(want.size() > 20);
  TinyOptions other = o;
  other.moe.balance_coeff = 0.5, other.moe.z_loss_coeff = 0.1;
  CHECK(hessians(other) == want);
  // An objective of one module, linear in its weight, like the Hessian of the full objective.
  other = o;
  other.modules_scale = 4 * o.modules_scale;
  const NamedTensors more = hessians(other);
  int of_module = 0;
  for (const auto& [name, h] : want) {
    INFO(name);
    const double largest = *std::max_element(h.begin(), h.end());
    CHECK(*std::min_element(h.begin(), h.end()) >= 0);
    if (name.find("layers.2.") == std::string::npos) {
      CHECK(more.at(name) != h);
      continue;
    }
    ++of_module;
    for (size_t i = 0; i < h.size(); ++i) REQUIRE(std::abs(more.at(name)[i] - 4 * h[i]) <= 1e-12 * largest);
  }
  CHECK(of_module > 5);
}
TEST_CASE("Sophia: stages of ZeRO agree to the bit") {
  for (const auto& [estimator, precision] : {std::pair{kHutchinson, "fp32"},
                                             {kGaussNewton, "fp32"},
                                             {kGaussNewton, "bf16"},
                                             {kGaussNewton, "fp16"}}) {
    TinyOptions o = sophia_job(estimator);
    o.precision = precision;
    o.loss_scale.initial = 1024;
    o.ranks = 2;
    o.micro_batch = 2;
    const TinyResult plain = train_tiny(o);
    for (int stage : {1, 2, 3}) {
      INFO(precision << ", ZeRO " << stage);
      o.zero_stage = stage;
      const TinyResult zero = train_tiny(o);
      check_same_bits(plain, zero);
      CHECK(zero.plan_bytes == zero.used_bytes);
      CHECK(zero.plan_wire == zero.used_wire);
    }
  }
}

TEST_CASE("Sophia with drawn labels trains in 16 bits as it does in fp32, whatever the loss scale is") {
  TinyOptions o = sophia_job(kGaussNewton);
  o.steps = 1, o.dropout = 0;
  o.precision = "fp32";
  const NamedTensors want = hessians(o);
  const auto far = [&](const NamedTensors& got) {  // bound of the sums over tensors
    double most = 0;
    for (const auto& [name, h] : want) {
      const double a = std::accumulate(h.begin(), h.end(), 0.0);
      most = std::max(most, std::abs(std::accumulate(got.at(name).begin(), got.at(name).end(), 0.0) / a - 1));
    }
    return most;
  };
  o.precision = "bf16";
  CHECK(far(hessians(o)) < 0.1);
  o.precision = "fp16";
  for (double scale : {256.0, 4096.0}) {
    o.loss_scale.initial = scale;
    CHECK(far(hessians(o)) < 0.02);
  }
  o.loss_scale.initial = 1e9,
  o.read_gradients = false;  // beyond what fp16 holds: such elements stay as they were
  for (const auto& [name, h] : hessians(o))
    for (double x : h) REQUIRE(std::isfinite(x));
}
