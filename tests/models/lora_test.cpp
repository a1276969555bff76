// Adapters against PEFT: logits, losses of twenty steps of AdamW, and adapters after them. The files are
// written by scripts/golden/make-lora-golden.py.
#include <catch2/catch.hpp>
#include <cmath>

#include "base/json/json.h"
#include "kernels/matmul/nf4.h"
#include "models/families/hf_tensors.h"
#include "models/moe/expert_adapters.h"
#include "runtime/weights/pissa.h"
#include "tests/models/hf_golden.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// NF4 for fixtures with quantised matrices.
LoraBase base_of(const HfGolden& g) { return g.file.find("edges") ? LoraBase::nf4 : LoraBase::full; }

LoraConfig lora_of(const HfGolden& g) {
  const auto config = nlohmann::json::parse(g.file.metadata().at("adapter_config"));
  LoraConfig lora;
  lora.base = base_of(g);
  if (config.at("init_lora_weights") == "pissa") lora.init = LoraInit::pissa;
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
struct LoraDifferences {
  double logits = 0, loss = 0, trained = 0;
  bool agree() const { return logits < 1e-6 && loss < 1e-9 && trained < 1e-5; }
};

std::string peft_name(const std::string& parameter) { return "base_model.model." + parameter; }

template <class T>
double relative_to_wanted(const double* got, const std::vector<T>& want) {
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

/// Subtracts the norms of a weight's rows from their magnitudes: ltrain has the changes from them.
void subtract_norms(const HfGolden& g, const std::string& weight, std::vector<double>& magnitudes) {
  const auto w = g.read<bf16>("weight." + weight);
  const int64_t rows = static_cast<int64_t>(magnitudes.size()), cols = static_cast<int64_t>(w.size()) / rows;
  REQUIRE(rows * cols == static_cast<int64_t>(w.size()));
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (int64_t c = 0; c < cols; ++c)
      sum += std::pow(static_cast<double>(static_cast<float>(w[static_cast<size_t>(row * cols + c)])), 2);
    magnitudes[static_cast<size_t>(row)] -= std::sqrt(sum);
  }
}

/// Values of a part of a file's tensor, as ltrain has them.
std::vector<double> adapter_values(const HfGolden& g, const ParameterSpec& spec, const std::string& when) {
  const auto read = [&](const std::string& name) {
    const auto values = g.read<float>(when + name);
    return std::vector<double>(values.begin(), values.end());
  };
  const std::string module(module_of(module_of(spec.name)));
  if (module.find(".experts.") != std::string::npos) {  // PEFT's modules: the matrices of the stack, in order
    std::vector<double> all(static_cast<size_t>(spec.shape.elements()));
    const auto tensors = hf_tensors(*g.model.family, module, g.model.moe.num_experts);
    for (const TensorName& t : tensors) {
      const auto matrix =
          read(peft_name(std::string(module_of(t.name)) +
                         (is_magnitude(spec) ? ".lora_magnitude_vector" : spec.name.substr(module.size()))));
      REQUIRE(matrix.size() * tensors.size() == all.size());
      const int64_t matrices = static_cast<int64_t>(tensors.size()) / g.model.moe.num_experts;
      std::copy(matrix.begin(), matrix.end(),
                all.begin() + (t.expert * matrices + t.matrix) * static_cast<int64_t>(matrix.size()));
    }
    if (is_magnitude(spec)) subtract_norms(g, module, all);
    return all;
  }
  if (!is_magnitude(spec)) return part_of(spec, read(peft_name(spec.name)));
  std::vector<double> all = read(peft_name(module) + ".lora_magnitude_vector");
  subtract_norms(g, module + ".weight", all);
  return part_of(spec, all);
}

/// A factor, or a weight without it, of the full tensors; all matrices of a stack of experts, in its order.
std::vector<double> pissa_values(const HfGolden& g, const ParameterStore& store, const LoraConfig& lora,
                                 const ParameterSpec& spec) {
  const std::string module(spec.adapter ? module_of(module_of(spec.name)) : std::string_view(spec.name));
  const bool stack = module.find(".experts.") != std::string::npos;
  const std::string name = stack || !spec.adapter ? module : module + ".weight",
                    weight = stack ? name + ".weight" : name;
  const Shape all = store.spec(store.find(name)).slice.global, shape{all[-2], all[-1]};
  const std::vector<float> w = floats(g.read<bf16>("weight." + name));
  std::vector<double> values;
  for (int64_t k = 0; k < all.elements() / shape.elements(); ++k) {
    const auto matrix = w.begin() + k * shape.elements();
    const PissaFactors f =
        pissa_factors(weight, lora, shape, {matrix, matrix + shape.elements()}, DType::f64);
    CHECK(f.residual < 1e-11);
    if (spec.name == lora_a_name(weight)) values.insert(values.end(), f.a.begin(), f.a.end());
    if (spec.name == lora_b_name(weight)) values.insert(values.end(), f.b.begin(), f.b.end());
    if (spec.name == name)
      for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(f.rest(i / f.cols, i % f.cols));
  }
  return values;
}

LoraDifferences compare_lora(const HfGolden& g, const LoraConfig& lora) {
  ProgramOptions o;
  o.model = g.model;
  o.model.lora = lora;
  o.precision = precision_policy("fp64");
  o.bucket_elements = 3000;
  o.seq_length = kHfSeq;
  o.accumulation = kHfBatch;
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
    trained += store.trains(id);
    if (store.is_nf4(id)) {
      std::vector<float> values = part_of(spec, floats(g.read<bf16>("weight." + spec.name)));
      REQUIRE(nf4_store(*compute, store.nf4(id), DType::f64, values.data()));
      continue;
    }
    Tensor value = store.value(id);
    REQUIRE(value.elements() == spec.shape.elements());
    const auto fill = [&](const auto& from) {
      for (size_t i = 0; i < from.size(); ++i) value.ptr<double>()[i] = static_cast<double>(from[i]);
    };
    const bool matrix = spec.name.ends_with(".weight"), bias = spec.name.ends_with(".bias");
    const bool adapted = !bias && store.find(lora_a_name(matrix ? spec.name : spec.name + ".weight")) >= 0;
    if (lora.init == LoraInit::pissa && (spec.adapter || adapted))
      fill(part_of(spec, pissa_values(g, store, lora_of_stacks(o.model), spec)));
    else if (spec.adapter)
      fill(adapter_values(g, spec, "before."));
    else
      fill(part_of(spec, floats(g.read<bf16>("weight." + spec.name))));
  }
  REQUIRE(trained > 0);
  const auto tokens = g.read<int32_t>("tokens"), targets = g.read<int32_t>("targets");
  const auto row = [&](const std::vector<int32_t>& of, int64_t step, int64_t sample) {
    const auto first = of.begin() + (step * kHfBatch + sample) * kHfSeq;
    return std::vector<int32_t>(first, first + kHfSeq);
  };
  LoraDifferences d;
  std::vector<double> logits;
  KeyValueCache cache = program.make_cache();
  for (int64_t sample = 0; sample < kHfBatch; ++sample) {
    cache.clear();
    cache.text_length = kHfSeq;
    for (const int32_t token : row(tokens, 0, sample)) {
      const auto next = program.extend({{&cache, {token}}});
      logits.insert(logits.end(), next[0].begin(), next[0].end());
    }
  }
  d.logits = relative_to_wanted(logits.data(), g.read<float>("logits"));
  const auto losses = g.read<double>("loss");
  REQUIRE(losses.back() < 0.95 * losses.front());  // it learns, so the updates matter
  for (int64_t step = 0; step < kHfSteps; ++step) {
    std::vector<HostBatch> batches(kHfBatch);
    for (int64_t k = 0; k < kHfBatch; ++k) {
      batches[static_cast<size_t>(k)].tokens = row(tokens, step, k);
      batches[static_cast<size_t>(k)].targets = row(targets, step, k);
      batches[static_cast<size_t>(k)].sample_index = {step * kHfBatch + k};
    }
    OptimizerStep args;
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
    if (store.trains(id)) {
      std::vector<double> want = adapter_values(g, store.spec(id), "after."),
                          got(store.value(id).ptr<double>(), store.value(id).ptr<double>() + want.size());
      if (lora.init == LoraInit::pissa)  // singular vectors have any sign, and training keeps it
        for (std::vector<double>* v : {&want, &got})
          for (double& e : *v) e = std::abs(e);
      d.trained = std::max(d.trained, relative_to_wanted(got.data(), want));
    }
  return d;
}

}  // namespace

TEST_CASE("adapters have PEFT's logits, losses of twenty steps, and values after them, in fp64") {
  const auto name =
      GENERATE(as<std::string>(), "llama", "llama_qv", "llama_pattern", "llama_dropout", "gpt2", "llama_dora",
               "llama_dora_qv", "gpt2_dora", "llama_nf4", "llama_pissa", "gpt2_pissa", "qwen3_moe",
               "qwen3_moe_pattern", "qwen3_moe_pissa", "qwen3_moe_dropout", "qwen3_moe_dora");
  const HfGolden g("lora_" + name);
  const LoraDifferences d = compare_lora(g, lora_of(g));
  INFO(name << ": logits " << d.logits << ", loss " << d.loss << ", adapters " << d.trained);
  CHECK(d.agree());
}

TEST_CASE(
    "negative control: adapters with another scale, or that train something else, do not agree with PEFT") {
  const HfGolden g("lora_llama_qv");
  LoraConfig lora = lora_of(g);
  lora.use_rslora = false;
  CHECK_FALSE(compare_lora(g, lora).agree());
  lora = lora_of(g);
  lora.modules_to_save.clear();
  CHECK_FALSE(compare_lora(g, lora).agree());
  lora = lora_of(g);
  lora.target_modules = {"q_proj", "v_proj"};
  CHECK_FALSE(compare_lora(g, lora).agree());
  const HfGolden pattern("lora_llama_pattern");
  lora = lora_of(pattern);
  lora.alpha_pattern.pop_back();
  CHECK_FALSE(compare_lora(pattern, lora).agree());
  const HfGolden dora("lora_llama_dora");
  lora = lora_of(dora);
  lora.dora = false;
  CHECK_FALSE(compare_lora(dora, lora).agree());
  const HfGolden nf4("lora_llama_nf4");
  lora = lora_of(nf4);
  lora.base = LoraBase::full;
  CHECK_FALSE(compare_lora(nf4, lora).agree());
  const HfGolden experts("lora_qwen3_moe");
  lora = lora_of(experts);
  lora.target_modules = {"q_proj", "gate_proj", "up_proj"};
  CHECK_FALSE(compare_lora(experts, lora).agree());
  const HfGolden own_ranks("lora_qwen3_moe_pattern");
  lora = lora_of(own_ranks);
  lora.use_rslora = false;
  CHECK_FALSE(compare_lora(own_ranks, lora).agree());
  lora = lora_of(own_ranks);
  std::erase_if(lora.alpha_pattern, [](const auto& entry) { return entry.first == "gate_proj"; });
  CHECK_FALSE(compare_lora(own_ranks, lora).agree());
  for (const char* name : {"lora_llama_dropout", "lora_qwen3_moe_dropout"}) {
    const HfGolden dropout(name);
    lora = lora_of(dropout);
    lora.dropout = 0;
    CHECK_FALSE(compare_lora(dropout, lora).agree());
  }
}

TEST_CASE("codes and magnitudes of NF4 are bitsandbytes', at the limits of levels too") {
  const HfGolden g("lora_llama_nf4");
  const auto compare = [&](const std::vector<float>& values, const std::string& codes,
                           const std::string& absmax) {
    INFO(codes);
    const int64_t n = static_cast<int64_t>(values.size());
    std::vector<uint8_t> got(values.size() / kNf4Pair);
    std::vector<float> largest(values.size() / kNf4Block);
    nf4_quantize(got.data(), largest.data(), values.data(), n);
    CHECK(got == g.read<uint8_t>(codes));
    CHECK(largest == g.read<float>(absmax));
  };
  int matrices = 0;
  for (const SafetensorsEntry& codes : g.file.entries())
    if (codes.name.starts_with("codes.")) {
      const std::string name = codes.name.substr(6);
      ++matrices;
      compare(floats(g.read<bf16>("weight." + name)), codes.name, "absmax." + name);
    }
  CHECK(matrices == 14);
  const auto edges = g.read<float>("edges"), values = g.read<float>("edges.values");
  compare(edges, "edges.codes", "edges.absmax");
  std::vector<uint8_t> codes = g.read<uint8_t>("edges.codes");
  std::vector<float> absmax = g.read<float>("edges.absmax"), got(edges.size());
  const auto tensor = [](void* data, DType dtype, size_t n) {
    Tensor t;
    t.data = data, t.dtype = dtype, t.shape = {1, static_cast<int64_t>(n)};
    return t;
  };
  const auto s = make_inline_stream("compute");
  const Nf4Matrix from{tensor(codes.data(), DType::u8, codes.size()),
                       tensor(absmax.data(), DType::f32, absmax.size())};
  nf4_dequantize(*s, tensor(got.data(), DType::f32, got.size()), from);
  CHECK(got == values);
  // Dequantised weights are quantised to themselves, in each type of the matmuls.
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::vector<float> rounded = floats(g.read<bf16>("weight.model.layers.0.mlp.up_proj.weight"));
    std::vector<uint8_t> first(rounded.size() / kNf4Pair), second(first.size());
    std::vector<float> one(rounded.size() / kNf4Block), two(one.size());
    const Nf4Matrix a{tensor(first.data(), DType::u8, first.size()),
                      tensor(one.data(), DType::f32, one.size())},
        b{tensor(second.data(), DType::u8, first.size()), tensor(two.data(), DType::f32, one.size())};
    REQUIRE(nf4_store(*s, a, dtype, rounded.data()));
    nf4_dequantize(*s, tensor(rounded.data(), DType::f32, rounded.size()), a);
    REQUIRE(nf4_store(*s, b, dtype, rounded.data()));
    CHECK((first == second && one == two));
  }
}

TEST_CASE("keys of experts' rows: 13 bits of a row in each normal number of 16 bits") {
  for (const int64_t row : {int64_t{0}, int64_t{1}, int64_t{8191}, int64_t{8192}, (int64_t{5} << 26) + 7,
                            (int64_t{1} << 52) - 1}) {
    const uint64_t key = static_cast<uint64_t>(row_key(row));
    uint64_t back = 0;
    for (int i = 0; i < 4; ++i) {
      const uint64_t limb = key >> (16 * i) & 0xffff;
      CHECK((limb >= 0x2000 && limb < 0x4000));
      back |= (limb & 0x1fff) << (13 * i);
    }
    CHECK(back == static_cast<uint64_t>(row));
  }
}

TEST_CASE("PiSSA: factors of PEFT, and their best approximation") {
  const HfGolden g("lora_llama_pissa");
  const LoraConfig lora = lora_of(g);
  const std::string module = "model.layers.0.mlp.down_proj";
  const PissaFactors f = pissa_factors(module + ".weight", lora, {16, 24},
                                       floats(g.read<bf16>("weight." + module + ".weight")), DType::f32);
  const auto a = g.read<float>("before." + peft_name(module) + ".lora_A.weight"),
             b = g.read<float>("before." + peft_name(module) + ".lora_B.weight");
  REQUIRE((a.size() == f.a.size() && b.size() == f.b.size()));
  double largest = 0, difference = 0, other = 0;
  for (int64_t row = 0; row < 16; ++row)
    for (int64_t col = 0; col < 24; ++col) {
      double theirs = 0, fewer = 0;
      for (int64_t k = 0; k < f.rank; ++k) {
        const double product = static_cast<double>(b[static_cast<size_t>(row * f.rank + k)]) *
                               static_cast<double>(a[static_cast<size_t>(k * 24 + col)]);
        theirs += product;
        if (k > 0) fewer += product;
      }
      const double ours =
          (static_cast<double>(f.w[static_cast<size_t>(row * 24 + col)]) - f.rest(row, col)) / f.scale;
      largest = std::max(largest, std::abs(theirs));
      difference = std::max(difference, std::abs(ours - theirs));
      other = std::max(other, std::abs(ours - fewer));
    }
  CHECK(difference < 1e-6 * largest);
  CHECK(other > 0.01 * largest);  // negative control: without the largest
  LoraConfig wide = lora;
  wide.rank = 17;
  CHECK_THROWS_WITH(pissa_factors(module + ".weight", wide, {16, 24}, f.w, DType::f32),
                    Catch::Contains("has 16 singular values, and its adapter rank 17"));
}
