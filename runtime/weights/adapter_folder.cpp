#include "runtime/weights/adapter_folder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "base/json/json.h"
#include "base/printable.h"
#include "models/families/hf_tensors.h"
#include "models/moe/expert_adapters.h"
#include "models/moe/moe_layer.h"
#include "parallel/optim/parameter_rule.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/files/strict_json.h"
#include "runtime/weights/hf_folder.h"
#include "runtime/weights/new_folder.h"
#include "runtime/weights/row_norms.h"
#include "runtime/weights/stream_tensor.h"

namespace ltrain {
namespace {

using nlohmann::json;

constexpr int64_t kMaxAdapterConfigBytes = 1 << 20;
constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kWeightsFile = "adapter_model.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";

/// A tensor of the folder, and the checkpoint's slice that it holds. PEFT has magnitudes of DoRA, and a
/// checkpoint their changes from the norms of the rows of `weight`.
struct Stored {
  std::string key, source;
  Shape shape;
  Slice slice;
  std::string weight = {};
};

/// Hugging Face's tensors of a weight: one, or one for each matrix of a stack of experts.
std::vector<TensorName> hf_names(const Recipe& recipe, const std::string& weight) {
  auto names = hf_tensors(*recipe.model.family, weight, recipe.model.moe.num_experts);
  if (names.empty() || (names.size() > 1 && names[0].expert < 0))
    fail(ExitCode::usage, "{}: has no single tensor in Hugging Face's {}, and PEFT has no adapter for it",
         weight, recipe.model.family->name);
  return names;
}

/// Name of the weight that a factor, or a magnitude, belongs to. Stacks of experts have no ".weight".
std::string weight_of(const Recipe& recipe, const std::string& factor) {
  const std::string module(module_of(module_of(factor)));
  return hf_tensors(*recipe.model.family, module, 1).empty() ? module + ".weight" : module;
}

/// Hugging Face's modules of a factor: "model.layers.0.self_attn.q_proj", or one for each matrix of experts.
std::vector<std::string> module_names(const Recipe& recipe, const std::string& factor) {
  std::vector<std::string> modules;
  for (const TensorName& name : hf_names(recipe, weight_of(recipe, factor)))
    modules.emplace_back(module_of(name.name));
  return modules;
}

std::vector<Stored> stored_tensors(const Recipe& recipe) {
  std::vector<Stored> all;
  for (const auto& [name, shape] : adapter_shapes(recipe.model)) {
    const std::string module(module_of(module_of(name))), weight = weight_of(recipe, name);
    const bool magnitude = name == lora_magnitude_name(weight);
    const std::string end = magnitude ? ".lora_magnitude_vector" : name.substr(module.size());
    for (const TensorName& tensor : hf_names(recipe, weight)) {
      Stored s{.key = std::string(kPrefix) + std::string(module_of(tensor.name)) + end,
               .source = name,
               .shape = shape,
               .slice = Slice::whole(shape),
               .weight = magnitude ? weight : std::string()};
      if (tensor.expert >= 0) {
        s.slice = expert_slice(shape, tensor);
        s.shape = {shape[shape.rank - 2], shape[shape.rank - 1]};
      }
      all.push_back(std::move(s));
    }
  }
  const std::vector<std::string> trained = recipe.model.lora.trained();
  for (const auto& [name, shape] : parameter_shapes(recipe.model))
    if (std::any_of(trained.begin(), trained.end(),
                    [&, name = name](const std::string& pattern) { return name_matches(pattern, name); }))
      all.push_back({.key = std::string(kPrefix) + hf_names(recipe, name).at(0).name,
                     .source = name,
                     .shape = shape,
                     .slice = Slice::whole(shape)});
  return all;
}

/// Last parts of the modules' names where these say which modules have adapters; else the whole names.
std::vector<std::string> target_modules(const Recipe& recipe) {
  std::set<std::string> modules, last, adapted;
  for (const auto& [name, shape] : adapter_shapes(recipe.model)) {
    for (const std::string& module : module_names(recipe, name)) modules.insert(module);
    adapted.insert(weight_of(recipe, name));
  }
  for (const std::string& module : modules) last.insert(module.substr(module.rfind('.') + 1));
  for (const auto& [name, shape] : parameter_shapes(recipe.model)) {
    const auto names = hf_tensors(*recipe.model.family, name, recipe.model.moe.num_experts);
    const bool linear = name.ends_with(".weight") || (!names.empty() && names[0].expert >= 0);
    if (!linear || adapted.count(name)) continue;
    for (const TensorName& t : names)
      for (const std::string& suffix : last)
        if (LoraConfig::names_module(suffix, module_of(t.name))) return {modules.begin(), modules.end()};
  }
  return {last.begin(), last.end()};
}

/// PEFT 0.21 with transformers 5 takes every module of such a name for one of the experts.
void note_names_of_experts(const Recipe& recipe, ExportReport& report) {
  if (recipe.model.moe.num_experts == 0) return;
  const HfTensorLayout& hf = recipe.model.family->hf_layout;
  for (const auto& [name, shape] : adapter_shapes(recipe.model))
    for (const std::string& module : module_names(recipe, name))
      for (const std::string& matrix : {hf.expert_gate, hf.expert_up, hf.expert_down})
        if (LoraConfig::names_module(matrix, module) && module.find(".experts.") == std::string::npos)
          return report.notes.push_back(
              fmt::format("PEFT 0.21 takes {} for a module of the experts, and drops its adapter without a "
                          "word; give it the merged model (--merge)",
                          module));
}

/// PEFT has no magnitudes for the stacks of transformers 5.
void refuse_magnitudes_of_experts(const Recipe& recipe) {
  if (!recipe.model.lora.dora) return;
  for (int64_t i = 0; i < recipe.model.num_hidden_layers; ++i)
    if (named_experts(recipe.model, i).any())
      fail(ExitCode::usage,
           "lora.dora = true: layer {} has magnitudes of experts, and PEFT has none for its stacks of "
           "experts; "
           "ltrain export --merge writes a model with them",
           i);
}

/// PEFT 0.21 with transformers 5 fails as it decomposes a stack of experts.
void note_singular_vectors_of_experts(const Recipe& recipe, ExportReport& report) {
  if (recipe.model.lora.init != LoraInit::pissa) return;
  for (int64_t i = 0; i < recipe.model.num_hidden_layers; ++i)
    if (named_experts(recipe.model, i).any())
      return report.notes.push_back(
          "PEFT 0.21 with transformers 5 does not decompose stacks of experts (init_lora_weights: pissa); "
          "give it the "
          "merged model (--merge)");
}

/// Says what vLLM 0.33 refuses of the adapters, and the option that their rank needs.
void note_limits_of_vllm(const Recipe& recipe, ExportReport& report) {
  const LoraConfig& lora = recipe.model.lora;
  const auto refuses = [&](const std::string& what) {
    report.notes.push_back(fmt::format("vLLM 0.33 refuses {}; give it the merged model (--merge)", what));
  };
  if (recipe.model.family->name == "gpt2") refuses("adapters of GPT2LMHeadModel");
  if (lora.dora) refuses("use_dora");
  if (lora.init == LoraInit::pissa) refuses("init_lora_weights: pissa");
  for (const std::string& module : lora.modules_to_save)
    if (module != "score") refuses(fmt::format("modules_to_save: [{}]", module));
  int64_t rank = lora.rank;
  for (const auto& [entry, own] : lora.rank_pattern) rank = std::max(rank, own);
  constexpr std::array<int64_t, 6> kRanks{32, 64, 128, 256, 320, 512};
  const auto most = std::lower_bound(kRanks.begin(), kRanks.end(), rank);
  if (most == kRanks.end())
    refuses(fmt::format("ranks above {}, and the adapter has {}", kRanks.back(), rank));
  else if (rank > 16)
    report.notes.push_back(
        fmt::format("vLLM needs --max-lora-rank {} for rank {}, instead of its 16", *most, rank));
}

json plain_number(double v) {
  return v == std::floor(v) && std::abs(v) < 1e15 ? json(static_cast<int64_t>(v)) : json(v);
}

/// An adapted module: its name in Hugging Face's model, its rank and its alpha.
struct Adapted {
  std::string module;
  int64_t rank = 0;
  double alpha = 0;
};

std::vector<Adapted> adapted_modules(const Recipe& recipe) {
  const LoraConfig lora = lora_of_stacks(recipe.model);
  std::map<std::string, Adapted> all;
  for (const auto& [name, shape] : adapter_shapes(recipe.model)) {
    const std::string weight = std::string(module_of(module_of(name))) + ".weight";
    for (const std::string& module : module_names(recipe, name))
      all[module] = {module, lora.rank_of(weight), lora.alpha_of(weight)};
  }
  std::vector<Adapted> list;
  for (auto& [module, adapted] : all) list.push_back(std::move(adapted));
  return list;
}

/// Values that differ from `otherwise`, by whole names: they mean the same to PEFT, which reads its patterns
/// as regular expressions. Experts' matrices of one name have one entry if all modules of that name have one
/// value: PEFT tries every entry for each module.
template <class F>
json pattern_of(const std::vector<Adapted>& modules, F value, double otherwise) {
  const auto last = [](const Adapted& a) { return a.module.substr(a.module.rfind('.') + 1); };
  std::map<std::string, std::set<double>> values;
  std::set<std::string> of_experts;
  for (const Adapted& a : modules) {
    values[last(a)].insert(value(a));
    if (a.module.find(".experts.") != std::string::npos) of_experts.insert(last(a));
  }
  json pattern = json::object();
  for (const Adapted& a : modules) {
    const bool one = of_experts.count(last(a)) && values[last(a)].size() == 1;
    if (value(a) != otherwise) pattern[one ? last(a) : a.module] = plain_number(value(a));
  }
  return pattern;
}

/// Adds entries for the stacks that PEFT with transformers 5 makes of single experts: gate and up become one
/// adapter of twice the rank, whose scale must stay. Without an entry PEFT takes lora.r and lora.alpha.
void add_stacks(const Recipe& recipe, json& ranks, json& alphas) {
  const LoraConfig lora = lora_of_stacks(recipe.model);
  for (int64_t i = 0; i < recipe.model.num_hidden_layers; ++i)
    for (const auto& [stack, matrices] : {std::pair{"gate_up_proj", 2}, {"down_proj", 1}}) {
      const NamedExperts named = named_experts(recipe.model, i);
      if ((matrices == 2 ? named.gate : named.down) == 0) continue;
      const std::string weight = fmt::format("{}.experts.{}.weight", moe_prefix(recipe.model, i), stack);
      const int64_t rank = lora.rank_of(weight);
      const double alpha = lora.alpha_of(weight), times = lora.use_rslora ? std::sqrt(matrices) : matrices;
      if (rank == lora.rank && alpha == lora.alpha && times == matrices) continue;
      const std::string theirs = fmt::format("{}.mlp.experts.{}", recipe.model.names().layer(i), stack);
      ranks[theirs] = matrices * rank;
      alphas[theirs] = plain_number(times * alpha);
    }
}

json config_of(const Recipe& recipe, const std::string& base) {
  const LoraConfig& lora = recipe.model.lora;
  const bool transposed = recipe.model.family->name == "gpt2";
  const auto list_or_null = [](const std::vector<std::string>& list) {
    return list.empty() ? json() : json(list);
  };
  const std::vector<Adapted> adapted = adapted_modules(recipe);
  json ranks = pattern_of(
           adapted, [](const Adapted&a) { return static_cast<double>(a.rank); },
           static_cast<double>(lora.rank)),
       alphas = pattern_of(
           adapted, [](const Adapted&a) { return a.alpha; }, lora.alpha);
  add_stacks(recipe, ranks, alphas);
  const double dropout =
      drops_inputs_of_experts(recipe.model) ? 0 : lora.dropout;  // PEFT refuses it for stacks
  return {{"alpha_pattern", alphas},
          {"auto_mapping", nullptr},
          {"base_model_name_or_path", base},
          {"bias", "none"},
          {"fan_in_fan_out", transposed},
          {"inference_mode", true},
          {"init_lora_weights", lora.init == LoraInit::pissa ? json("pissa") : json(true)},
          {"layers_pattern", nullptr},
          {"layers_to_transform", nullptr},
          {"lora_alpha", plain_number(lora.alpha)},
          {"lora_dropout", dropout},
          {"modules_to_save", list_or_null(lora.modules_to_save)},
          {"peft_type", "LORA"},
          {"r", lora.rank},
          {"rank_pattern", ranks},
          {"revision", nullptr},
          {"target_modules", target_modules(recipe)},
          {"task_type", recipe.model.scores_texts ? "SEQ_CLS" : "CAUSAL_LM"},
          {"use_dora", lora.dora},
          {"use_rslora", lora.use_rslora}};
}

/// Settings of PEFT that change what an adapter computes, with the value that ltrain's adapters have.
struct Fixed {
  const char* key;
  json value;
};
const std::vector<Fixed>& fixed_settings() {
  static const std::vector<Fixed> all{{"peft_type", "LORA"},
                                      {"bias", "none"},
                                      {"lora_bias", false},
                                      {"use_qalora", false},
                                      {"use_bdlora", nullptr},
                                      {"arrow_config", nullptr},
                                      {"kasa_config", nullptr},
                                      {"monteclora_config", nullptr},
                                      {"velora_config", nullptr},
                                      {"layer_replication", nullptr},
                                      {"alora_invocation_tokens", nullptr},
                                      {"trainable_token_indices", nullptr},
                                      {"target_parameters", nullptr}};
  return all;
}

/// True for values that say the same as an absent key: null, false, and empty lists and maps.
bool says_nothing(const json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
}

/// A map of PEFT from names of modules to numbers above 0.
std::vector<std::pair<std::string, double>> read_pattern(const std::string& path, const json& config,
                                                         const char* key) {
  std::vector<std::pair<std::string, double>> pattern;
  if (!config.contains(key) || says_nothing(config[key])) return pattern;
  if (!config[key].is_object())
    fail(ExitCode::usage, "{}: {} = {}: expected a map of modules to numbers", path, key,
         printable(config[key].dump()));
  for (const auto& [entry, value] : config[key].items()) {
    // PEFT reads entries as regular expressions; such a name stands for itself.
    const std::string_view name = std::string_view(entry).substr(entry.starts_with('^') ? 1 : 0);
    if (name.empty() || name == kAllLinear || name.find_first_of("\\^$*+?()[]{}|") != std::string_view::npos)
      fail(ExitCode::usage,
           "{}: {} has the regular expression {}; expected names of modules, such as q_proj or "
           "model.layers.0.self_attn.q_proj",
           path, key, printable(entry));
    if (!value.is_number() || !(value.get<double>() > 0))
      fail(ExitCode::usage, "{}: {}: {} = {}: expected a number above 0", path, key, printable(entry),
           printable(value.dump()));
    pattern.emplace_back(entry, value.get<double>());
  }
  return pattern;
}

/// Value of a module: that of the entry that is its name or the last parts of it.
double pattern_value(const std::string& path, const char* key,
                     const std::vector<std::pair<std::string, double>>& pattern, const std::string& module,
                     double otherwise) {
  std::optional<double> found;
  for (const auto& [entry, value] : pattern) {
    const bool whole = entry.starts_with('^');
    const std::string_view name = std::string_view(entry).substr(whole ? 1 : 0);
    if (whole ? module != name : !LoraConfig::names_module(name, module)) continue;
    if (found && *found != value)
      fail(ExitCode::usage, "{}: {} has two values for {}, {} and {}; leave one", path, key, module, *found,
           value);
    found = value;
  }
  return found.value_or(otherwise);
}

/// Fails if a module's rank or alpha in the folder is not that of the recipe.
void check_patterns(const std::string& path, const json& config, const Recipe& recipe) {
  const auto ranks = read_pattern(path, config, "rank_pattern"),
             alphas = read_pattern(path, config, "alpha_pattern");
  const LoraConfig& lora = recipe.model.lora;
  const auto same = [&](const char* key, const auto& pattern, const Adapted& adapted, double otherwise,
                        double ours) {
    const double theirs = pattern_value(path, key, pattern, adapted.module, otherwise);
    if (theirs != ours)
      fail(ExitCode::usage, "{}: {}: {} has {}, and the recipe has lora.{} that gives it {}; make it agree",
           path, key, adapted.module, theirs, key, ours);
  };
  for (const Adapted& adapted : adapted_modules(recipe)) {
    same("rank_pattern", ranks, adapted, static_cast<double>(lora.rank), static_cast<double>(adapted.rank));
    same("alpha_pattern", alphas, adapted, lora.alpha, adapted.alpha);
  }
}

void check_config(const std::string& path, const Recipe& recipe) {
  if (!path_exists(path))
    fail(ExitCode::storage, "{}: there is no such file; expected a folder of PEFT", path);
  std::string error;
  const json config = data::parse_strict(read_text_file(path, kMaxAdapterConfigBytes), 8, error);
  if (!error.empty() || !config.is_object())
    fail(ExitCode::storage, "{}: expected a JSON object, got {}", path,
         error.empty() ? "another value" : error);
  const LoraConfig& lora = recipe.model.lora;
  const auto refuse = [&](const char* key, const std::string& rule) {
    fail(ExitCode::usage, "{}: {} = {}: {}", path, key, config.contains(key) ? config[key].dump() : "absent",
         rule);
  };
  for (const Fixed& f : fixed_settings()) {
    if (!config.contains(f.key) || config[f.key] == f.value) continue;
    if (says_nothing(config[f.key]) && says_nothing(f.value)) continue;
    if (f.key == std::string_view("target_parameters"))
      refuse(f.key,
             "adapters of stacks of experts are not read; those of single experts are (target_modules, and "
             "tensors such as ...experts.0.down_proj.lora_A.weight)");
    refuse(f.key, fmt::format("ltrain's adapters have {}", f.value.dump()));
  }
  const auto expect = [&](const char* key, const char* ours, const json& value) {
    if (!config.contains(key) || config[key] != value)
      refuse(key, fmt::format("the recipe has {} = {}; make it agree", ours, value.dump()));
  };
  expect("r", "lora.r", lora.rank);
  if (!config.contains("lora_alpha") || !config["lora_alpha"].is_number() ||
      config["lora_alpha"].get<double>() != lora.alpha)
    refuse("lora_alpha", fmt::format("the recipe has lora.alpha = {}; make it agree", lora.alpha));
  if (lora.dora || config.value("use_dora", json(false)) == true) expect("use_dora", "lora.dora", lora.dora);
  if (lora.use_rslora || config.value("use_rslora", json(false)) == true)
    expect("use_rslora", "lora.use_rslora", lora.use_rslora);
  // PEFT changes the base by such a start, and the others leave it.
  const json init = config.value("init_lora_weights", json(true));
  const bool pissa = init.is_string() && init.get<std::string>().starts_with("pissa");
  if (pissa != (lora.init == LoraInit::pissa))
    refuse("init_lora_weights", fmt::format("the recipe has lora.init = {}; make it agree",
                                            lora.init == LoraInit::pissa ? "pissa" : "zero"));
  check_patterns(path, config, recipe);
}

std::vector<float> magnitudes_of(PieceReader& reader, const Stored& s) {
  std::vector<float> magnitudes(static_cast<size_t>(s.shape[0]));
  reader.read(s.source, DType::f32, Slice::whole(s.shape), magnitudes.data());
  const auto norms =
      row_norms(reads_of(reader), s.weight, reader.tensors().at(s.weight).shape, 0, s.shape[0]);
  for (size_t i = 0; i < magnitudes.size(); ++i)
    magnitudes[i] = static_cast<float>(static_cast<double>(magnitudes[i]) + norms[i]);
  return magnitudes;
}

}  // namespace

void write_adapter_folder(PieceReader& reader, const Recipe& recipe, const std::string& base,
                          const std::string& folder, ExportReport& report) {
  refuse_magnitudes_of_experts(recipe);
  std::map<std::string, Stored> by_key;
  std::vector<SafetensorsItem> items;
  int64_t all = 0;
  for (Stored& s : stored_tensors(recipe)) {
    if (!reader.has(s.source)) fail(ExitCode::usage, "{}: has no {}", reader.path(), s.source);
    items.push_back({s.key, DType::f32, dims_of(s.shape), nullptr});
    all += items.back().bytes();
    by_key[s.key] = std::move(s);
  }
  NewFolder made(folder);
  made.need(all);
  write_text_file(made.work() + "/" + kConfigFile, config_of(recipe, base).dump(2));
  NewFile file(made.work() + "/" + kWeightsFile);
  SafetensorsWriter writer(file, items);
  for (const SafetensorsItem& item : writer.items()) {
    const Stored& s = by_key.at(item.name);
    if (!s.weight.empty()) {
      const std::vector<float> magnitudes = magnitudes_of(reader, s);
      writer.write(magnitudes.data(), static_cast<int64_t>(magnitudes.size() * sizeof(float)));
      report.bytes += item.bytes();
      continue;
    }
    stream_tensor(reads_of(reader), s.source, DType::f32, s.slice, false,
                  [&](const void* data, int64_t bytes) {
                    writer.write(data, bytes);
                    report.bytes += bytes;
                  });
  }
  writer.finish();
  report.tensors = static_cast<int64_t>(items.size());
  report.dtype = DType::f32;
  report.files = {kWeightsFile, kConfigFile};
  note_names_of_experts(recipe, report);
  note_singular_vectors_of_experts(recipe, report);
  note_limits_of_vllm(recipe, report);
  made.commit();
}

std::unique_ptr<PieceReader> open_adapter_folder(const std::string& folder, const Recipe& recipe) {
  check_config(folder + "/" + kConfigFile, recipe);
  const SafetensorsFile file(folder + "/" + kWeightsFile);
  std::map<std::string, TensorParts> tensors;
  std::set<std::string> left;
  for (const SafetensorsEntry& e : file.entries()) left.insert(e.name);
  for (const Stored& s : stored_tensors(recipe)) {
    const SafetensorsEntry* e = file.find(s.key);
    if (!e)
      fail(ExitCode::usage, "{}: has no {}, which lora.target_modules asks for; make the recipe agree",
           file.path(), s.key);
    const auto dtype = dtype_from_safetensors(e->dtype);
    if (!dtype ||
        (*dtype != DType::f32 && *dtype != DType::bf16 && *dtype != DType::f16 && *dtype != DType::f64))
      fail(ExitCode::usage, "{}: {} is {}; expected F32, BF16, F16 or F64", file.path(), s.key, e->dtype);
    if (e->shape != dims_of(s.shape))
      fail(ExitCode::usage, "{}: {} is [{}], and the recipe's model has {}", file.path(), s.key,
           fmt::join(e->shape, ", "), to_string(s.shape));
    left.erase(s.key);
    TensorParts& parts = tensors[s.source];
    if (!parts.pieces.empty() && parts.dtype != *dtype)
      fail(ExitCode::usage, "{}: {} is {}, and other experts of its layer have another type", file.path(),
           s.key, e->dtype);
    parts.dtype = *dtype;
    parts.shape = s.slice.global;
    parts.pieces.push_back({0, s.key, s.slice});
  }
  if (!left.empty())
    fail(ExitCode::usage,
         "{}: has {}{}, which the recipe's adapters do not have; make lora.target_modules agree", file.path(),
         *left.begin(), left.size() > 1 ? fmt::format(" and {} more", left.size() - 1) : "");
  return std::make_unique<PieceReader>(folder, std::vector<std::string>{kWeightsFile}, std::move(tensors));
}

}  // namespace ltrain
