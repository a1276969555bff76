// Adapters against PEFT: logits, losses of twenty steps of AdamW, and adapters after them. The files are
// written by scripts/golden/make-lora-golden.py.
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/models/hf_golden.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kSteps = 20, kBatch = 2, kSeq = 12;

LoraConfig lora_of(const HfGolden& g) {
  const auto config = nlohmann::json::parse(g.file.metadata().at("adapter_config"));
  LoraConfig lora;
  lora.rank = config.at("r");
  lora.alpha = config.at("lora_alpha");
  lora.dropout = config.at("lora_dropout");
  lora.use_rslora = config.at("use_rslora");
  lora.dora = config.at("use_dora");
  lora.target_modules = config.at("target_modules").get<std::vector<std::string>>();
  for (const auto& [module, rank] : config.at("rank_pattern").items())
    lora.rank_pattern.emplace_back(module, rank.get<int64_t>());
  for (const auto& [module, alpha] : config.at("alpha_pattern").items())
    lora.alpha_pattern.emplace_back(module, alpha.get<double>());
  if (config.at("modules_to_save").is_array())
    lora.modules_to_save = config.at("modules_to_save").get<std::vector<std::string>>();
  return lora;
}

/// Largest differences, relative to the loss, and to the largest value of a tensor.
struct Differences {
  double logits = 0, loss = 0, trained = 0;
  bool agree() const { return logits < 1e-6 && loss < 1e-9 && trained < 1e-5; }
};

std::string peft_name(const std::string& parameter) { return "base_model.model." + parameter; }

template <class T>
double apart(const double* got, const std::vector<T>& want) {
  double largest = 0, difference = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    difference = std::max(difference, std::abs(got[i] - static_cast<double>(want[i])));
  }
  REQUIRE(largest > 0);
  return difference / largest;
}

std::vector<float> floats(const std::vector<bf16>& values) {
  std::vector<float> out;
  for (const bf16 v : values) out.push_back(static_cast<float>(v));
  return out;
}

bool is_magnitude(const ParameterSpec& spec) { return spec.name.ends_with(".lora_magnitude.weight"); }

/// Norms of the rows of the weight that a part of magnitudes belongs to: ltrain has the magnitudes' changes
/// from them.
std::vector<double> row_norms_of(const HfGolden& g, const ParameterSpec& spec) {
  const auto w = g.read<bf16>("weight." + std::string(module_of(module_of(spec.name))) + ".weight");
  const int64_t rows = spec.slice.global[0], cols = static_cast<int64_t>(w.size()) / rows;
  std::vector<double> norms;
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (int64_t c = 0; c < cols; ++c)
      sum += std::pow(static_cast<double>(static_cast<float>(w[static_cast<size_t>(row * cols + c)])), 2);
    norms.push_back(std::sqrt(sum));
  }
  return norms;
}

/// Values of a part of a file's tensor, as ltrain has them.
std::vector<double> adapter_values(const HfGolden& g, const ParameterSpec& spec, const std::string& when) {
  const auto read = [&](const std::string& name) {
    const auto values = g.read<float>(when + name);
    return std::vector<double>(values.begin(), values.end());
  };
  if (!is_magnitude(spec)) return part_of(spec, read(peft_name(spec.name)));
  std::vector<double> all =
      read(peft_name(std::string(module_of(module_of(spec.name)))) + ".lora_magnitude_vector");
  const std::vector<double> norms = row_norms_of(g, spec);
  REQUIRE(norms.size() == all.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] -= norms[i];
  return part_of(spec, all);
}

Differences compare(const HfGolden& g, const LoraConfig& lora) {
  ProgramOptions o;
  o.model = g.model;
  o.model.lora = lora;
  o.precision = precision_policy("fp64");
  o.bucket_elements = 3000;
  o.seq_length = kSeq;
  o.accumulation = kBatch;
  o.clip_grad = 0;
  o.optimizer.trained = lora.trained();
  auto compute = make_inline_stream("compute");
  CpuArena arena(64 << 20);
  const GroupSet alone;
  TrainProgram program(o, {*compute, arena, alone.groups()});
  program.initialize();
  ParameterStore& store = program.parameters();
  int trained = 0;
  for (int id = 0; id < store.count(); ++id) {
    const ParameterSpec& spec = store.spec(id);
    Tensor value = store.value(id);
    trained += store.trains(id);
    REQUIRE(value.elements() == spec.shape.elements());
    const auto fill = [&](const auto& from) {
      for (size_t i = 0; i < from.size(); ++i) value.ptr<double>()[i] = static_cast<double>(from[i]);
    };
    if (spec.adapter)
      fill(adapter_values(g, spec, "before."));
    else
      fill(part_of(spec, floats(g.read<bf16>("weight." + spec.name))));
  }
  REQUIRE(trained > 0);
  const auto tokens = g.read<int32_t>("tokens"), targets = g.read<int32_t>("targets");
  const auto row = [&](const std::vector<int32_t>& of, int64_t step, int64_t sample) {
    const auto first = of.begin() + (step * kBatch + sample) * kSeq;
    return std::vector<int32_t>(first, first + kSeq);
  };
  Differences d;
  std::vector<double> logits;
  KeyValueCache cache = program.make_cache();
  for (int64_t sample = 0; sample < kBatch; ++sample) {
    cache.clear();
    cache.text_length = kSeq;
    for (const int32_t token : row(tokens, 0, sample)) {
      const auto next = program.extend({{&cache, {token}}});
      logits.insert(logits.end(), next[0].begin(), next[0].end());
    }
  }
  d.logits = apart(logits.data(), g.read<float>("logits"));
  const auto losses = g.read<double>("loss");
  REQUIRE(losses.back() < 0.95 * losses.front());  // it learns, so the updates matter
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<HostBatch> batches(kBatch);
    for (int64_t k = 0; k < kBatch; ++k) {
      batches[static_cast<size_t>(k)].tokens = row(tokens, step, k);
      batches[static_cast<size_t>(k)].targets = row(targets, step, k);
      batches[static_cast<size_t>(k)].sample_index = {step * kBatch + k};
    }
    AdamwArgs args;
    args.lr = g.number("lr");
    args.beta1 = g.number("beta1");
    args.beta2 = g.number("beta2");
    args.eps = g.number("eps");
    args.weight_decay = g.number("weight_decay");
    args.step = step + 1;
    const StepResult r = program.train_step(batches, args);
    d.loss = std::max(
        d.loss, std::abs(r.loss - losses[static_cast<size_t>(step)]) / losses[static_cast<size_t>(step)]);
  }
  for (int id = 0; id < store.count(); ++id)
    if (store.trains(id))
      d.trained = std::max(d.trained,
                           apart(store.value(id).ptr<double>(), adapter_values(g, store.spec(id), "after.")));
  return d;
}

}  // namespace

TEST_CASE("adapters have PEFT's logits, losses of twenty steps, and values after them, in fp64") {
  const auto name = GENERATE(as<std::string>(), "llama", "llama_qv", "llama_pattern", "llama_dropout", "gpt2",
                             "llama_dora", "llama_dora_qv", "gpt2_dora");
  const HfGolden g("lora_" + name);
  const Differences d = compare(g, lora_of(g));
  INFO(name << ": logits " << d.logits << ", loss " << d.loss << ", adapters " << d.trained);
  CHECK(d.agree());
}

TEST_CASE(
    "negative control: adapters with another scale, or that train something else, do not agree with PEFT") {
  const HfGolden g("lora_llama_qv");
  LoraConfig lora = lora_of(g);
  lora.use_rslora = false;
  CHECK_FALSE(compare(g, lora).agree());
  lora = lora_of(g);
  lora.modules_to_save.clear();
  CHECK_FALSE(compare(g, lora).agree());
  lora = lora_of(g);
  lora.target_modules = {"q_proj", "v_proj"};
  CHECK_FALSE(compare(g, lora).agree());
  const HfGolden pattern("lora_llama_pattern");
  lora = lora_of(pattern);
  lora.alpha_pattern.pop_back();
  CHECK_FALSE(compare(pattern, lora).agree());
  const HfGolden dora("lora_llama_dora");
  lora = lora_of(dora);
  lora.dora = false;
  CHECK_FALSE(compare(dora, lora).agree());
  const HfGolden dropout("lora_llama_dropout");
  lora = lora_of(dropout);
  lora.dropout = 0;
  CHECK_FALSE(compare(dropout, lora).agree());
}
