// Each layer alone: its backward against central differences of its forward, and tensor-parallel ranks
// against one.
#include <catch2/catch.hpp>
#include <cmath>

#include "models/attention/attention_layer.h"
#include "models/attention/rope_angles.h"
#include "models/decoder/decoder.h"
#include "models/layers/head.h"
#include "models/layers/mlp_layer.h"
#include "models/layers/norm_layer.h"
#include "tests/models/differences.h"
#include "tests/models/layer_rig.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

ModelConfig small(const std::string& architecture) {
  ModelConfig c;
  c.family = &family_of(architecture);
  c.vocab_size = 10;
  c.hidden_size = 8;
  c.intermediate_size = 12;
  c.num_attention_heads = 4;
  c.num_key_value_heads = architecture == "gpt2" ? 4 : 2;
  c.head_dim = 4;
  c.initializer_range = 0.3;
  return c;
}

LayerCase linear_case() {
  auto layer = std::make_shared<Linear>();
  return {[=](ParameterStore& s, const Groups& g, bool sp) {
            layer->declare(s, g, sp, {{"linear", 8}}, 8, true, 0.3, LinearSharding::row);
          },
          [=](LayerRank& r) {
            layer->forward(r.step, r.y, r.x);
            layer->backward(r.step, r.dx, r.dy, r.x);
          }};
}

LayerCase norm_case(NormKind kind) {
  auto layer = std::make_shared<NormLayer>();
  ModelTraits traits;
  traits.norm = kind;
  return {
      [=](ParameterStore& s, const Groups& g, bool sp) { layer->declare(s, g, "norm", traits, 8, 1e-5, sp); },
      [=](LayerRank& r) {
        Residual in;
        in.x = r.x;
        in.kept = true;
        NormLayer::Saved saved;
        layer->forward(r.step, in, saved);
        std::copy_n(saved.y.ptr<double>(), r.y.elements(), r.y.ptr<double>());
        layer->backward(r.step, r.dx, r.dy, saved, true);
      }};
}

LayerCase mlp_case(const std::string& architecture) {
  auto layer = std::make_shared<MlpLayer>();
  return {[=](ParameterStore& s, const Groups& g, bool sp) {
            layer->declare(s, g, small(architecture), sp, "mlp", 0.3);
          },
          [=](LayerRank& r) {
            MlpLayer::Saved saved;
            layer->forward(r.step, r.y, r.x, r.mb.rows(), saved);
            layer->backward(r.step, r.dx, r.dy, r.x, saved);
          }};
}

LayerCase attention_case(const std::string& architecture) {
  auto layer = std::make_shared<AttentionLayer>();
  const ModelConfig config = small(architecture);
  return {[=](ParameterStore& s, const Groups& g, bool sp) {
            layer->declare(s, g, config, sp, "attention", "attention", 0.3, 0);
          },
          [=](LayerRank& r) {
            Tensor table;
            if (config.traits().positions == PositionEmbedding::rotary) {
              const std::vector<float> angles = rope_angles(config, r.mb.seq);
              table = r.step.memory.allocate(MemoryKind::temporaries, "angles", DType::f32,
                                             {r.mb.seq, config.head_dim / 2, 2});
              std::copy(angles.begin(), angles.end(), table.ptr<float>());
            }
            AttentionLayer::Saved saved;
            layer->forward(r.step, r.mb, r.y, r.x, table, saved);
            layer->backward(r.step, r.mb, r.dx, r.dy, r.x, table, saved);
          }};
}

/// For a layer with a loss, y stays zero.
LayerCase head_case() {
  auto layer = std::make_shared<Head>();
  return {[=](ParameterStore& s, const Groups& g, bool sp) {
            layer->declare(s, g, small("llama"), sp, true, -1);
          },
          [=](LayerRank& r) {
            std::fill_n(r.y.ptr<double>(), r.y.elements(), 0.0);
            Residual in;
            in.x = r.x;
            in.kept = true;
            const Tensor dx = layer->loss(r.step, r.mb, in);
            std::copy_n(dx.ptr<double>(), dx.elements(), r.dx.ptr<double>());
          }};
}

struct Named {
  const char* name;
  MakeLayer layer;
  int64_t key_value_heads = 0;
};

std::vector<Named> all_layers() {
  return {{"linear", linear_case},
          {"RMSNorm", [] { return norm_case(NormKind::rms); }},
          {"LayerNorm", [] { return norm_case(NormKind::layer); }},
          {"SwiGLU", [] { return mlp_case("llama"); }},
          {"GELU", [] { return mlp_case("gpt2"); }},
          {"attention, grouped heads, rotary", [] { return attention_case("llama"); }, 2},
          {"attention, one matrix, biases", [] { return attention_case("gpt2"); }},
          {"attention, norms of heads", [] { return attention_case("qwen3_moe"); }, 2},
          {"attention, norms of projections", [] { return attention_case("olmoe"); }, 2},
          {"head", head_case}};
}

/// Objective of the layer's gradients: the outputs weighted by dy, and the loss as the micro-batch scales it.
double objective(const MakeLayer& layer, const Moved& moved) {
  const LayerResult r = run_layer(layer, {}, moved);
  double sum = 0.25 * r.loss;
  for (size_t i = 0; i < r.y.size(); ++i) sum += r.y[i] * layer_noise("dy", static_cast<int64_t>(i));
  return sum;
}

/// Four points: the error of the difference itself is far below the bound.
double difference(const MakeLayer& layer, const std::string& name, int64_t at) {
  const double h = 1e-3;
  const auto f = [&](double by) { return objective(layer, {name, at, by}); };
  return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h);
}

/// Five elements of each gradient, relative to its largest; `spoil` scales the layer's, for the control.
double worst_gradient(const MakeLayer& layer, double spoil = 1) {
  const LayerResult base = run_layer(layer, {});
  std::map<std::string, std::vector<double>> gradients = base.gradients;
  gradients["x"] = base.dx;
  double worst = 0;
  for (const auto& [name, gradient] : gradients)
    for (int64_t probe = 0; probe < 5; ++probe) {
      const int64_t at = (7 * probe + 3) % static_cast<int64_t>(gradient.size());
      worst =
          std::max(worst, std::abs(difference(layer, name, at) - spoil * gradient[at]) / largest(gradient));
    }
  return worst;
}

}  // namespace

TEST_CASE("gradients of each layer equal central differences") {
  for (const Named& n : all_layers()) {
    INFO(n.name);
    CHECK(worst_gradient(n.layer) < 1e-8);
  }
}

TEST_CASE("negative control: a layer's gradient that is 0.01 % off is seen") {
  for (const Named& n : all_layers()) {
    INFO(n.name);
    CHECK(worst_gradient(n.layer, 1.0001) > 1e-6);
  }
}

TEST_CASE("each layer on tensor-parallel ranks is the layer on one") {
  for (const Named& n : all_layers()) {
    if (std::string(n.name) == "linear") continue;  // its input lies cut; the sublayers have it
    const LayerResult one = run_layer(n.layer, {});
    for (const auto& [ranks, sequence] : {std::pair{2, false}, {2, true}, {4, false}}) {
      if (ranks > 1 && std::string(n.name).find("Norm") != std::string::npos && !sequence) continue;
      INFO(n.name << ", " << ranks << " ranks" << (sequence ? ", sequence parallel" : ""));
      LayerLayout l;
      l.tensor = ranks, l.sequence_parallel = sequence, l.key_value_heads = n.key_value_heads;
      const LayerResult many = run_layer(n.layer, l);
      CHECK(largest_difference(one.y, many.y) < 1e-12);
      CHECK(largest_difference(one.dx, many.dx) < 1e-12);
      CHECK(std::abs(one.loss - many.loss) <= 1e-12 * std::abs(one.loss));
      REQUIRE(one.gradients.size() == many.gradients.size());
      for (const auto& [name, gradient] : one.gradients) {
        INFO(name);
        CHECK(largest_difference(gradient, many.gradients.at(name)) < 1e-12);
      }
    }
  }
}
