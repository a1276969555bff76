// MoE models against transformers' own code, in fp64: token loss, loss for balance, and the gradient
// of every parameter of their sum. The files are written by scripts/golden/make-moe-golden.py; the model is
// read from the config.json that transformers made its own from.
#include <catch2/catch.hpp>

#include <cmath>
#include <numeric>

#include "tests/models/hf_golden.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct MoeDifferences {
  double loss = 0, balance = 0;  ///< relative; absolute where the balance must be 0
  double entropy = 0;            ///< relative; absolute without such a loss
  double gradient = 0;           ///< the largest of a tensor, of its largest element
  int tensors = 0;
  std::string worst;
  std::vector<int32_t> chosen;  ///< choices of each layer
};

/// One step of ltrain beside transformers'. `gives`: tokens go to the file's experts.
MoeDifferences compare_moe(const HfGolden& g, const ModelConfig& model, bool gives = false) {
  const int64_t batch = g.file.find("tokens")->shape[0], seq = g.file.find("tokens")->shape[1];
  ProgramOptions o;
  o.model = model;
  o.precision = precision_policy("fp64");
  o.bucket_elements = 3000;
  o.micro_batch = batch;
  o.seq_length = seq;
  o.accumulation = 1;
  o.clip_grad = 0;
  const auto given = gives ? g.read<int32_t>("given")
                           : std::vector<int32_t>();  // (layers, tokens, k): experts of each token
  if (gives) o.choices = ProgramOptions::Choices::replay;
  auto compute = make_inline_stream("compute");
  CpuArena arena(64 << 20);
  const GroupSet alone;
  TrainProgram program(o, {*compute, arena, alone.groups()});
  program.initialize();
  ParameterStore& store = program.parameters();
  int64_t weights = 0;
  for (const SafetensorsEntry& e : g.file.entries()) weights += e.name.rfind("weight.", 0) == 0;
  REQUIRE(store.count() == weights);
  for (int id = 0; id < store.count(); ++id) {
    const auto w = g.read<bf16>("weight." + store.spec(id).name);
    Tensor value = store.value(id);
    REQUIRE(value.elements() == static_cast<int64_t>(w.size()));
    for (size_t i = 0; i < w.size(); ++i) value.ptr<double>()[i] = static_cast<float>(w[i]);
  }
  if (g.file.find("correction_bias")) {
    const auto bias = g.read<double>("correction_bias");  // (layers, experts)
    auto from = bias.begin();
    for (const RegisteredBuffer& b : store.kept(true)) {
      std::copy_n(from, b.tensor.elements(), b.tensor.ptr<double>());
      from += b.tensor.elements();
    }
    REQUIRE(from == bias.end());
  }
  std::vector<HostBatch> batches(1);
  batches[0].tokens = g.read<int32_t>("tokens");
  batches[0].targets = g.read<int32_t>("targets");
  batches[0].sample_index.assign(batch, 0);
  const int64_t each = batch * seq * model.moe.top_k;
  for (size_t l = 0; l < program.router_layers().size(); ++l) {
    const auto from = given.begin() + static_cast<int64_t>(l) * each;
    if (gives) program.give_choices(0, l, {from, from + each});
  }
  OptimizerStep still;
  still.lr = 0;
  still.step = 1;
  const StepResult r = program.train_step(batches, still, {});
  MoeDifferences d;
  for (const std::vector<double>& layer : r.experts.chosen)
    d.chosen.push_back(static_cast<int32_t>(std::accumulate(layer.begin(), layer.end(), 0.0)));
  const auto relative = [](double got, double want) {
    return std::abs(got - want) / (want == 0 ? 1 : std::abs(want));
  };
  d.loss = relative(r.loss, g.read<double>("token_loss").at(0));
  d.balance = relative(r.experts.balance_loss,
                       g.read<double>("aux_loss").at(0) *
                           (model.family->name == "olmoe" ? 0.01 : 0.001));  // their classes' coefficients
  d.entropy = relative(r.experts.entropy_loss,
                       g.file.find("entropy_loss") ? g.read<double>("entropy_loss").at(0) : 0);
  for (int id = 0; id < store.count(); ++id) {
    const auto want = g.read<double>("grad." + store.spec(id).name);
    const double* got = store.grad(id).ptr<double>();
    double largest = 0, apart = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      largest = std::max(largest, std::abs(want[i]));
      apart = std::max(apart, std::abs(got[i] - want[i]));
    }
    REQUIRE(largest > 0);
    ++d.tensors;
    if (apart / largest <= d.gradient) continue;
    d.gradient = apart / largest;
    d.worst = store.spec(id).name;
  }
  return d;
}

bool agrees(const MoeDifferences& d) {
  return d.loss < 1e-12 && d.balance < 1e-12 && d.entropy < 1e-12 && d.gradient < 1e-10;
}

}  // namespace

TEST_CASE("MoE models have transformers' loss, loss for balance and gradients") {
  const auto name = GENERATE(as<std::string>(), "mixtral", "qwen3_moe", "olmoe", "mixtral_one",
                             "qwen3_moe_one", "olmoe_one");
  const HfGolden g(std::string("hf_") + name);
  REQUIRE(g.model.moe.balance == BalanceLoss::hf);
  const MoeDifferences d = compare_moe(g, g.model);
  INFO(name << ": loss " << d.loss << ", balance " << d.balance << ", gradient " << d.gradient << " of "
            << d.worst);
  CHECK(d.tensors >= 20);
  CHECK(d.loss < 1e-12);
  CHECK(d.balance < 1e-12);
  CHECK(d.gradient < 1e-10);
}

TEST_CASE("top-p: a token's fewest experts, the loss and gradients are those of transformers' layers") {
  const HfGolden g("hf_olmoe_top_p");
  ModelConfig m = g.model;
  m.moe.selection = Selection::top_p;
  m.moe.top_p = g.number("top_p");
  const MoeDifferences d = compare_moe(g, m);
  INFO("loss " << d.loss << ", gradient " << d.gradient << " of " << d.worst);
  CHECK(d.chosen == g.read<int32_t>("taken"));
  CHECK(agrees(d));
  m.moe.top_p = 0.85;
  CHECK_FALSE(agrees(compare_moe(g, m)));  // negative controls: another bound, and all of top_k
  CHECK_FALSE(agrees(compare_moe(g, g.model)));
}

TEST_CASE("the entropy of routers' scores: the loss and gradients are those of autograd") {
  const HfGolden g("hf_olmoe_top_p_entropy");
  ModelConfig m = g.model;
  m.moe.selection = Selection::top_p;
  m.moe.top_p = g.number("top_p");
  m.moe.entropy_coeff = g.number("entropy_coeff");
  const MoeDifferences d = compare_moe(g, m);
  INFO("loss " << d.loss << ", entropy " << d.entropy << ", gradient " << d.gradient << " of " << d.worst);
  CHECK(agrees(d));
  m.moe.entropy_coeff *= 1.001;  // negative control
  const MoeDifferences other = compare_moe(g, m);
  CHECK(other.entropy > 1e-4);
  CHECK(other.gradient > 1e-7);
}

TEST_CASE("zero experts: choices, the loss and gradients are those of transformers' longcat_flash modules") {
  const HfGolden g("hf_olmoe_zero");
  ModelConfig m = g.model;
  m.moe.zero_experts = static_cast<int64_t>(g.number("zero_experts"));
  m.moe.routed_scaling_factor = g.number("scale");
  m.moe.bias_update_rate = 1e-3;  // moves after the step
  const MoeDifferences d = compare_moe(g, m);
  INFO("loss " << d.loss << ", gradient " << d.gradient << " of " << d.worst);
  CHECK(d.tensors >= 20);
  CHECK(d.chosen == g.read<int32_t>("taken"));
  CHECK(agrees(d));
  m.moe.norm_topk_prob = true;  // negative controls: other weights, another scale
  CHECK_FALSE(agrees(compare_moe(g, m)));
  m.moe.norm_topk_prob = false;
  m.moe.routed_scaling_factor *= 1.001;
  CHECK_FALSE(agrees(compare_moe(g, m)));
}

TEST_CASE("given experts have the loss and gradients of transformers' layers with these experts") {
  const HfGolden g("hf_olmoe_given");
  const MoeDifferences d = compare_moe(g, g.model, true);
  INFO("loss " << d.loss << ", gradient " << d.gradient << " of " << d.worst);
  CHECK(d.tensors >= 20);
  CHECK(agrees(d));
  CHECK_FALSE(agrees(compare_moe(g, g.model)));  // negative controls: the router's own experts, other weights
  ModelConfig m = g.model;
  m.moe.norm_topk_prob = false;
  CHECK_FALSE(agrees(compare_moe(g, m, true)));
}

TEST_CASE("negative control: an MoE model that is a little different does not agree with transformers") {
  const auto name = GENERATE(as<std::string>(), "mixtral", "qwen3_moe", "olmoe", "mixtral_one",
                             "qwen3_moe_one", "olmoe_one");
  const HfGolden g(std::string("hf_") + name);
  INFO(name);
  ModelConfig m = g.model;
  m.moe.norm_topk_prob = !m.moe.norm_topk_prob;
  CHECK_FALSE(agrees(compare_moe(g, m)));
  m = g.model;
  m.moe.balance = BalanceLoss::none;
  MoeDifferences d = compare_moe(g, m);
  CHECK(d.loss < 1e-12);  // the token loss has no part in it, the gradients have
  CHECK(d.gradient > 1e-7);
  m.moe.balance = BalanceLoss::switch_loss;  // layer by layer is another loss than over all layers together
  d = compare_moe(g, m);
  CHECK(d.balance > 1e-3);
  CHECK(d.gradient > 1e-7);
  m = g.model;
  m.moe.balance_coeff *= 1.001;
  CHECK(compare_moe(g, m).balance > 1e-4);
}

TEST_CASE(
    "in a model of one layer of experts, switch with top_k times the coefficient is transformers' loss") {
  TinyOptions o;
  o.moe.num_experts = 4;
  o.moe.top_k = 2;
  o.moe.dense_layers = {0, 2};
  o.layers = 3;
  o.steps = 1;
  o.moe.balance = BalanceLoss::hf;
  o.moe.balance_coeff = 0.25;
  const TinyResult all = train_tiny(o);
  o.moe.balance = BalanceLoss::switch_loss;
  o.moe.balance_coeff = 0.5;
  const TinyResult layer = train_tiny(o);
  CHECK(std::abs(all.balance_losses.at(0) - layer.balance_losses.at(0)) < 1e-14);
  REQUIRE(all.gradients.size() == layer.gradients.size());
  double apart = 0;
  for (const auto& [name, values] : all.gradients)
    for (size_t i = 0; i < values.size(); ++i)
      apart = std::max(apart, std::abs(values[i] - layer.gradients.at(name)[i]));
  CHECK(apart < 1e-13);
}
