// LoRA: what trains, and the same adapters under every layout.
#include <catch2/catch.hpp>

#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions with_lora(const std::string& architecture) {
  TinyOptions o;
  o.architecture = architecture;
  o.lora.rank = 4;
  o.lora.alpha = 6;
  o.micro_batch = 2;
  o.padded_targets = true;
  return o;
}

/// A function of a factor's name and the element.
double factor_value(const std::string& name, int64_t i) {
  return 0.1 * std::sin(static_cast<double>(hash_name(name) % 97) + static_cast<double>(i));
}

/// Gives adapters those values, or adds their product to the weights that `merged` adapts.
void set_factors(const TinyRank& rank, const LoraConfig& merged) {
  rank.program.initialize();
  ParameterStore& store = rank.program.parameters();
  for (int id = 0; id < store.count(); ++id) {
    const ParameterSpec& spec = store.spec(id);
    double* values = store.value(id).ptr<double>();
    if (spec.adapter)
      for (int64_t i = 0; i < spec.shape.elements(); ++i) values[i] = factor_value(spec.name, i);
    if (!merged.adapts(spec.name)) continue;
    const std::string a = lora_a_name(spec.name), b = lora_b_name(spec.name);
    for (int64_t i = 0; i < spec.shape[0]; ++i)
      for (int64_t j = 0; j < spec.shape[1]; ++j)
        for (int64_t k = 0, rank = merged.rank_of(spec.name); k < rank; ++k)
          values[i * spec.shape[1] + j] += merged.scale_of(spec.name) * factor_value(b, i * rank + k) *
                                           factor_value(a, k * spec.shape[1] + j);
  }
}

bool is_adapter(const std::string& name) { return name.find(".lora_") != std::string::npos; }

/// A check that `one` with a change has the results of `expected`, which outlives it, with memory and traffic
/// as planned.
auto same_results_as(const TinyResult& expected, const TinyOptions& one) {
  return [&expected, one](const std::string& name, const std::function<void(TinyOptions&)>& change) {
    INFO(one.architecture << ", " << name);
    TinyOptions o = one;
    change(o);
    const TinyResult many = train_tiny(o);
    require_parity(expected, many, 1e-12);
    CHECK(many.plan_bytes == many.used_bytes);
    if (o.expert == 1) CHECK(many.plan_wire == many.used_wire);  // experts' rows depend on the router
  };
}

}  // namespace

TEST_CASE("lora: a run begins with the model's own loss, and only adapters and modules_to_save move") {
  TinyOptions o = with_lora(GENERATE(as<std::string>(), "llama", "gpt2", "deepseek_v3"));
  if (o.architecture == "gpt2") o.untied = true;
  o.lora.modules_to_save = {"lm_head"};
  TinyOptions plain = o;
  plain.lora = {};
  const NamedTensors first = at_first(o), base = at_first(plain);
  const TinyResult r = train_tiny(o), whole = train_tiny(plain);
  CHECK(r.losses[0] == whole.losses[0]);  // B is zero
  CHECK(r.plan_bytes == r.used_bytes);
  int adapters = 0, saved = 0;
  for (const auto& [name, values] : r.parameters) {
    INFO(name);
    const bool trains = is_adapter(name) || name == "lm_head.weight", same = values == first.at(name);
    CHECK(same != trains);
    CHECK(r.gradients.count(name) == (trains ? 1 : 0));
    adapters += is_adapter(name);
    saved += name == "lm_head.weight";
    if (is_adapter(name)) continue;
    const bool kept = first.at(name) == base.at(name);
    CHECK(kept);
  }
  CHECK(adapters > 0);
  CHECK(saved == 1);
}

TEST_CASE("lora: gradients are those of the merged matrix times the other factor") {
  // W' = W + s B A: dA = s B^T dW', dB = s dW' A^T. The gradients of W' come from a run without adapters.
  TinyOptions o = with_lora("llama");
  o.lora.target_modules = {"q_proj", "v_proj", "o_proj", "up_proj", "down_proj"};
  o.clip = 0;
  o.lora.rank_pattern = {{"q_proj", 3}, {"*.1.mlp.*", 2}};
  o.lora.alpha_pattern = {{"v_proj", 5}};
  o.steps = 2;  // the second; a first one would begin with the initial weights
  TinyOptions merged = o;
  merged.lora = {};
  TinyHooks hooks, merged_hooks;
  hooks.begin = [&](const TinyRank& rank) { return set_factors(rank, {}), 1; };
  merged_hooks.begin = [&](const TinyRank& rank) { return set_factors(rank, o.lora), 1; };
  const TinyResult r = train_tiny(o, {}, hooks), want = train_tiny(merged, {}, merged_hooks);
  CHECK(std::abs(r.losses[0] - want.losses[0]) < 1e-13 * want.losses[0]);
  int checked = 0;
  for (const auto& [name, dw] : want.gradients) {
    if (!o.lora.adapts(name)) continue;
    INFO(name);
    const std::vector<double>&da = r.gradients.at(lora_a_name(name)), &db = r.gradients.at(lora_b_name(name));
    const double scale = o.lora.scale_of(name);
    const int64_t rank = o.lora.rank_of(name), in = static_cast<int64_t>(da.size()) / rank,
                  out = static_cast<int64_t>(db.size()) / rank;
    double worst = 0, largest = 0;
    for (int64_t k = 0; k < rank; ++k) {
      for (int64_t j = 0; j < in; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < out; ++i)
          sum += factor_value(lora_b_name(name), i * rank + k) * dw[static_cast<size_t>(i * in + j)];
        worst = std::max(worst, std::abs(scale * sum - da[static_cast<size_t>(k * in + j)]));
        largest = std::max(largest, std::abs(scale * sum));
      }
      for (int64_t i = 0; i < out; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < in; ++j)
          sum += dw[static_cast<size_t>(i * in + j)] * factor_value(lora_a_name(name), k * in + j);
        worst = std::max(worst, std::abs(scale * sum - db[static_cast<size_t>(i * rank + k)]));
      }
    }
    CHECK(worst < 1e-13 * std::max(1.0, largest));
    CHECK(largest > 1e-6);
    ++checked;
  }
  CHECK(checked == 10);
}

TEST_CASE("lora: adapters under every axis equal one process to 1e-12 in fp64") {
  TinyOptions one = with_lora(GENERATE(as<std::string>(), "llama", "gpt2", "qwen3_moe"));
  one.layers = 4;
  if (one.architecture == "qwen3_moe") {
    one.moe.num_experts = 4;
    one.moe.top_k = 2;
  } else {
    one.dropout = 0.1;
  }
  if (one.architecture == "gpt2") one.lora.target_modules = {"c_attn", "mlp.c_proj"};
  if (one.architecture != "qwen3_moe") {  // one rank in the third model
    one.lora.rank_pattern = {{"v_proj", 2}, {"*.1.mlp.*", 3}};
    one.lora.alpha_pattern = {{"q_proj", 9}};
    if (one.architecture == "gpt2") one.lora.rank_pattern = {{"*.1.attn.c_attn", 2}};
    if (one.architecture == "gpt2") one.lora.alpha_pattern = {{"mlp.c_proj", 9}};
  }
  one.lora.dropout = 0.2;
  if (one.architecture == "llama") one.lora.modules_to_save = {"lm_head", "embed_tokens"};
  const TinyResult base = train_tiny(one);
  const auto check = same_results_as(base, one);
  for (const int stage : {0, 1, 2, 3})
    check(fmt::format("data 2, ZeRO-{}", stage), [&](TinyOptions& o) { o.ranks = 2, o.zero_stage = stage; });
  check("tensor 2", [](TinyOptions& o) { o.tensor = 2; });
  check("tensor 2, in parts", [](TinyOptions& o) { o.tensor = 2, o.async_tensor_parallel = true; });
  check("tensor 2, sequence, ZeRO-3",
        [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = true, o.ranks = 2, o.zero_stage = 3; });
  if (one.architecture != "gpt2")  // two key-value heads for four ranks
    check("tensor 4, sequence", [](TinyOptions& o) { o.tensor = 4, o.sequence_parallel = true; });
  check("context 2", [](TinyOptions& o) { o.context = 2; });
  check("1f1b, ZeRO-1", [](TinyOptions& o) { o.pipeline = 2, o.ranks = 2, o.zero_stage = 1; });
  check("zb-h1, tensor 2", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zb-h1", o.tensor = 2; });
  check("zbv", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zbv", o.chunks = 2; });
  check("micro-batches by turns, tensor 2",
        [](TinyOptions& o) { o.interleaved = true, o.tensor = 2, o.ranks = 2; });
  check("recomputation", [](TinyOptions& o) { o.recompute.run = 1; });
  if (one.architecture == "qwen3_moe") check("expert 2", [](TinyOptions& o) { o.ranks = o.expert = 2; });
}

TEST_CASE("lora: adapters of experts under every axis equal one process to 1e-12 in fp64") {
  const auto [architecture, dora] =
      GENERATE(std::pair("qwen3_moe", false), std::pair("mixtral", false), std::pair("qwen3_moe", true));
  TinyOptions one = with_lora(architecture);
  const bool mixtral = one.architecture == "mixtral";
  one.layers = 4;
  one.moe.num_experts = 4;
  one.moe.top_k = 2;
  one.lora.target_modules = {"q_proj", "*.experts.*"};
  if (mixtral) one.lora.target_modules = {"o_proj", "*.experts.*.w2"};
  one.lora.rank_pattern = {{mixtral ? "w2" : "down_proj", 3}, {"*.1.*.experts.*", 2}};
  one.lora.alpha_pattern = {{"*.2.*.experts.*", 11}};
  one.lora.use_rslora = mixtral;
  one.lora.dropout = 0.2;
  one.lora.dora = dora;
  TinyOptions plain = one;
  plain.lora = {};
  const NamedTensors first = at_first(one);
  const TinyResult base = train_tiny(one);
  // B is zero, and the magnitudes are the norms.
  CHECK(std::abs(base.losses[0] - train_tiny(plain).losses[0]) <= (dora ? 1e-14 : 0));
  int factors = 0;
  for (const auto& [name, values] : base.parameters) {
    INFO(name);
    const bool same = values == first.at(name);
    CHECK(same != is_adapter(name));
    CHECK(base.gradients.count(name) == (is_adapter(name) ? 1 : 0));
    factors += name.find(".experts.") != std::string::npos && is_adapter(name);
  }
  CHECK(factors == (mixtral ? 8 : 16) / 2 * (one.lora.dora ? 3 : 2));
  const auto check = same_results_as(base, one);
  for (const int stage : {0, 1, 2, 3})
    check(fmt::format("data 2, ZeRO-{}", stage), [&](TinyOptions& o) { o.ranks = 2, o.zero_stage = stage; });
  check("tensor 2", [](TinyOptions& o) { o.tensor = 2; });
  check("tensor 2, sequence, ZeRO-3",
        [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = true, o.ranks = 2, o.zero_stage = 3; });
  check("context 2", [](TinyOptions& o) { o.context = 2; });
  check("1f1b, ZeRO-1", [](TinyOptions& o) { o.pipeline = 2, o.ranks = 2, o.zero_stage = 1; });
  check("zb-h1, tensor 2", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zb-h1", o.tensor = 2; });
  check("micro-batches by turns, tensor 2",
        [](TinyOptions& o) { o.interleaved = true, o.tensor = 2, o.ranks = 2; });
  check("recomputation", [](TinyOptions& o) { o.recompute.run = 1; });
  check("expert 2", [](TinyOptions& o) { o.ranks = o.expert = 2; });
  check("expert 2 of data 4, ZeRO-3", [](TinyOptions& o) { o.ranks = 4, o.expert = 2, o.zero_stage = 3; });
  check("expert 4, in chunks", [](TinyOptions& o) { o.ranks = o.expert = 4, o.dispatch.chunks = 2; });
  check("expert 2, gathered, tensor 2",
        [](TinyOptions& o) { o.ranks = o.expert = 2, o.tensor = 2, o.dispatch.gather = true; });
  check("expert 2 over tensor 2, sequence",
        [](TinyOptions& o) { o.tensor = o.expert = 2, o.sequence_parallel = true, o.expert_tensor = false; });
}

TEST_CASE(
    "lora: magnitudes begin with the model's own loss, and equal one process under every axis in fp64") {
  TinyOptions one = with_lora(GENERATE(as<std::string>(), "llama", "gpt2", "deepseek_v3"));
  one.lora.dora = true;
  one.layers = 4;
  if (one.architecture == "gpt2") one.lora.target_modules = {"c_attn", "mlp.c_proj"};
  if (one.architecture == "llama") one.lora.target_modules = {"q_proj", "v_proj", "o_proj", "*.mlp.*"};
  if (one.architecture == "llama") one.lora.rank_pattern = {{"v_proj", 2}};
  TinyOptions plain = one;
  plain.lora = {};
  const TinyResult base = train_tiny(one);
  // GPT-2 adds biases after the magnitudes, and without these in the matmul.
  CHECK(std::abs(base.losses[0] - train_tiny(plain).losses[0]) < 1e-14);
  TinyOptions without = one;
  without.lora.dora = false;
  CHECK(base.losses[2] != train_tiny(without).losses[2]);
  int moved = 0;
  for (const auto& [name, values] : base.parameters)
    if (name.ends_with(".lora_magnitude.weight"))
      moved += std::all_of(values.begin(), values.end(), [](double v) { return v != 0; });
  CHECK(moved >= 8);
  one.lora.dropout = 0.2;
  const TinyResult dropped = train_tiny(one);
  const auto check = same_results_as(dropped, one);
  check("data 2, ZeRO-3", [&](TinyOptions& o) { o.ranks = 2, o.zero_stage = 3; });
  check("tensor 2", [](TinyOptions& o) { o.tensor = 2; });
  check("tensor 2, sequence, ZeRO-3",
        [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = true, o.ranks = 2, o.zero_stage = 3; });
  if (one.architecture == "llama")  // two key-value heads for four ranks
    check("tensor 4, sequence", [](TinyOptions& o) { o.tensor = 4, o.sequence_parallel = true; });
  check("context 2", [](TinyOptions& o) { o.context = 2; });
  check("1f1b, ZeRO-1", [](TinyOptions& o) { o.pipeline = 2, o.ranks = 2, o.zero_stage = 1; });
  check("zb-h1, tensor 2", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zb-h1", o.tensor = 2; });
  check("micro-batches by turns, tensor 2",
        [](TinyOptions& o) { o.interleaved = true, o.tensor = 2, o.ranks = 2; });
  check("recomputation", [](TinyOptions& o) { o.recompute.run = 1; });
}

TEST_CASE("lora: weights in NF4 are the same under every axis, and so is training, in fp64") {
  TinyOptions one = with_lora(GENERATE(as<std::string>(), "llama", "gpt2"));
  one.lora.base = LoraBase::nf4;
  one.hidden = 256;
  one.intermediate = 128;
  one.layers = 4;
  one.vocab = 32;
  if (one.architecture == "llama") one.lora.target_modules = {"q_proj", "v_proj", "o_proj", "down_proj"};
  const TinyResult base = train_tiny(one);
  TinyOptions full = one;
  full.lora.base = LoraBase::full;
  const TinyResult unquantised = train_tiny(full);
  CHECK(std::abs(base.losses[0] - unquantised.losses[0]) > 1e-4);  // negative control
  const auto& values = base.parameters;
  const std::string matrix =
      one.architecture == "gpt2" ? "h.1.mlp.c_fc.weight" : "model.layers.1.mlp.up_proj.weight";
  const NamedTensors first = at_first(one);
  const auto name =
      std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.first.ends_with(matrix); });
  REQUIRE(name != values.end());
  CHECK(name->second == first.at(name->first));  // frozen
  // fp64 has 8 bytes a frozen weight, and NF4 has 4.5 bits.
  int64_t frozen = 0;
  for (const auto& [n, v] : values)
    if (n.ends_with(".weight") && v != unquantised.parameters.at(n) && !is_adapter(n))
      frozen += static_cast<int64_t>(v.size());
  REQUIRE(frozen > 1'000'000);
  const double saved = static_cast<double>(unquantised.used_bytes[0] - base.used_bytes[0]);
  constexpr double kDequantised = 8.0 * 768 * 256;  // the largest matrix, as a temporary
  CHECK(saved > (8 - 4.5 / 8) * static_cast<double>(frozen) - kDequantised);
  const auto check = [&](const std::string& what, const std::function<void(TinyOptions&)>& change) {
    INFO(one.architecture << ", " << what);
    TinyOptions o = one;
    change(o);
    const TinyResult many = train_tiny(o);
    require_parity(base, many, 1e-12);
    CHECK(many.parameters.at(name->first) == name->second);
    CHECK(many.plan_bytes == many.used_bytes);
    CHECK(many.plan_wire == many.used_wire);
  };
  for (const int stage : {0, 1, 2, 3})
    check("data 2, ZeRO-" + std::to_string(stage),
          [&](TinyOptions& o) { o.ranks = 2, o.zero_stage = stage; });
  check("tensor 2", [](TinyOptions& o) { o.tensor = 2; });
  check("tensor 2, sequence, ZeRO-3",
        [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = true, o.ranks = 2, o.zero_stage = 3; });
  check("tensor 2, in chunks",
        [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = true, o.async_tensor_parallel = true; });
  check("context 2", [](TinyOptions& o) { o.context = 2; });
  check("1f1b, ZeRO-1", [](TinyOptions& o) { o.pipeline = 2, o.ranks = 2, o.zero_stage = 1; });
  check("zb-h1, tensor 2", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zb-h1", o.tensor = 2; });
  check("recomputation, magnitudes", [](TinyOptions& o) { o.recompute.run = 1; });
}

TEST_CASE("lora: in bf16 frozen weights have no master weights, and all ZeRO stages have the same bits") {
  TinyOptions o = with_lora("llama");
  o.precision = "bf16";
  o.ranks = 2;
  o.micro_batch = 4;  // one a step: ZeRO-2 and 3 reduce each of several
  const TinyResult two = train_tiny(o);
  for (const int stage : {1, 2, 3}) {
    TinyOptions sharded = o;
    sharded.zero_stage = stage;
    check_same_bits(two, train_tiny(sharded));
  }
  TinyOptions whole = o;
  whole.lora = {};
  int64_t frozen = 0;
  for (const auto& [name, values] : at_first(whole)) frozen += static_cast<int64_t>(values.size());
  // A master weight, a gradient and two moments of 4 bytes each. Adapters and what they compute take less.
  CHECK(train_tiny(whole).used_bytes[0] - two.used_bytes[0] > 16 * frozen - 120'000);
}
