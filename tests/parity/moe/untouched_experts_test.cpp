// Experts that no token of a step chose: neither updated nor moved, under every layout.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/parity/moe/moe_jobs.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kSixteenExperts = 16;

/// 32 tokens a step, each of one expert of 16.
TinyOptions offloaded_moe() {
  TinyOptions o = tiny_moe();
  o.moe.num_experts = kSixteenExperts;
  o.moe.top_k = 1;
  o.global_batch = 2;
  o.seq = 16;
  o.steps = 4;
  o.padded_targets = false;
  o.offload = {1.0, 256};
  o.offload.skip_untouched = true;
  return o;
}

bool is_experts(const std::string& name) { return name.find(".experts.") != std::string::npos; }
size_t layer_of(const std::string& name) { return std::stoul(name.substr(name.find("layers.") + 7)); }

struct Moments {
  std::vector<double> first, second;
};

/// AdamW of Loshchilov and Hutter for elements [begin, end), in the notation of PyTorch's page.
void adamw(std::vector<double>& w, Moments& m, const std::vector<double>& g, std::pair<size_t, size_t> range,
           double scale, int64_t step) {
  const double lr = 1e-2, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1;
  for (size_t i = range.first; i < range.second; ++i) {
    const double grad = scale * g[i];
    m.first[i] = beta1 * m.first[i] + (1 - beta1) * grad;
    m.second[i] = beta2 * m.second[i] + (1 - beta2) * grad * grad;
    const double first = m.first[i] / (1 - std::pow(beta1, step)),
                 second = m.second[i] / (1 - std::pow(beta2, step));
    w[i] = (1 - lr * decay) * w[i] - lr * first / (std::sqrt(second) + eps);
  }
}

}  // namespace

TEST_CASE("experts without tokens keep their weights and moments, others follow AdamW to 1e-12") {
  TinyOptions o = offloaded_moe();
  o.steps = 0;
  NamedTensors want = train_tiny(o).parameters;
  std::map<std::string, Moments> moments;
  int64_t untouched = 0, again = 0;
  std::map<std::string, std::vector<bool>> waited;
  for (o.steps = 1; o.steps <= 5; ++o.steps) {
    o.gradients_of = o.steps;
    const TinyResult r = train_tiny(o);
    const size_t at = static_cast<size_t>(o.steps - 1);
    const double scale = std::min(1.0, o.clip / (r.norms[at] + 1e-6));
    for (auto& [name, w] : want) {
      if (!is_experts(name)) continue;
      Moments& m = moments[name];
      m.first.resize(w.size()), m.second.resize(w.size());
      waited[name].resize(kSixteenExperts);
      const std::vector<double>& grad = r.gradients.at(name);
      const std::vector<double>& tokens = r.experts[at].chosen[layer_of(name)];
      const size_t each = w.size() / kSixteenExperts;
      for (size_t e = 0; e < kSixteenExperts; ++e) {
        const std::pair range(e * each, (e + 1) * each);
        if (tokens[e] > 0) {
          adamw(w, m, grad, range, scale, o.steps);
          again += waited[name][e];
        } else {
          for (size_t i = range.first; i < range.second; ++i) REQUIRE(grad[i] == 0);
          ++untouched;
        }
        waited[name][e] = tokens[e] == 0 && m.second[range.first] > 0;
      }
    }
    NamedTensors got;
    for (auto& [name, w] : want) got[name] = is_experts(name) ? r.parameters.at(name) : w;
    INFO("step " << o.steps);
    CHECK(worst_relative(want, got) < 1e-12);
    for (const auto& [name, w] : r.parameters)
      if (!is_experts(name)) want[name] = w;
  }
  CHECK(untouched > 0);
  CHECK(again > 0);  // touched, passed over, and touched again
}

TEST_CASE("all layouts pass over the same experts, and move fewer bytes than all states have") {
  const TinyResult one = train_tiny(offloaded_moe());
  TinyOptions all = offloaded_moe();
  all.offload.skip_untouched = false;
  CHECK(worst_relative(train_tiny(all).parameters, one.parameters) > 1e-6);
  const auto check = [&](const char* what, auto change) {
    INFO(what);
    TinyOptions o = offloaded_moe();
    change(o);
    const TinyResult many = train_tiny(o);
    require_parity(one, many, 1e-11);
    CHECK(many.plan_bytes == many.used_bytes);
    if (o.expert == 1) CHECK(many.plan_wire == many.used_wire);  // a plan is of even routing
    for (const double moved : many.moved_mib) {
      CHECK(moved > 0);
      CHECK(moved * (1 << 20) < static_cast<double>(2 * many.plan_offloaded[0].all()));
    }
  };
  for (const int stage : {1, 2, 3}) check("ZeRO", [&](TinyOptions& o) { o.ranks = 2, o.zero_stage = stage; });
  check("expert", [](TinyOptions& o) { o.ranks = o.expert = 2; });
  check("expert, ZeRO-3", [](TinyOptions& o) { o.ranks = o.expert = 2, o.zero_stage = 3; });
  check("tensor", [](TinyOptions& o) { o.tensor = 2; });
  check("context", [](TinyOptions& o) { o.context = 2; });
  check("pipeline", [](TinyOptions& o) { o.pipeline = 2; });
  check("two micro-batches", [](TinyOptions& o) { o.micro_batch = 2; });
  check("offloaded weights too", [](TinyOptions& o) { o.ranks = 2, o.zero_stage = 3, o.offload.params = 1; });
}

TEST_CASE("experts without tokens stay in every type of states, wherever the states are") {
  const auto check = [](const char* what, auto change) {
    INFO(what);
    TinyOptions o = offloaded_moe();
    o.ranks = 2;
    o.zero_stage = 1;
    change(o);
    const TinyResult away = train_tiny(o);
    o.offload.fraction = 0.4;
    check_same_bits(away, train_tiny(o));
    o.offload.window = 4096;
    check_same_bits(away, train_tiny(o));
    o.zero_stage = 3;
    check_same_bits(away, train_tiny(o));
  };
  check("fp32", [](TinyOptions& o) { o.precision = "fp32"; });
  check("bf16", [](TinyOptions& o) { o.precision = "bf16"; });
  check("bf16 moments", [](TinyOptions& o) { o.precision = "fp32", o.bf16_states = true; });
  check("no master weights", [](TinyOptions& o) { o.precision = "bf16", o.master_weights = false; });
  check("lion", [](TinyOptions& o) { o.precision = "fp32", o.optimizer.rule = UpdateRule::lion; });
}
