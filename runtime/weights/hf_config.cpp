#include "runtime/weights/hf_config.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/json/json.h"
#include "models/attention/rope_angles.h"
#include "models/families/hf_keys.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/files/strict_json.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kMaxConfigBytes = 1 << 20;

std::string torch_name(DType t) {
  return t == DType::f64    ? "float64"
         : t == DType::f32  ? "float32"
         : t == DType::bf16 ? "bfloat16"
                            : "float16";
}

/// Returns whether every family has this row. Such keys say that the model is a decoder, which is clear from
/// its class.
bool is_common(const std::string& name) {
  static const std::vector<HfKey> common = [] {
    std::vector<HfKey> rows;
    add_common(rows);
    return rows;
  }();
  return find_hf_key(common, name) != nullptr;
}

/// Value of a recipe key as JSON; null if it has no meaning in this recipe.
json value_of(const Recipe& recipe, const std::string& path) {
  const recipe::Key* key = recipe::find_key(path);
  LT_CHECK(key, "expected a schema row for the key {}, got none", path);
  return key->in_dump(recipe) ? json::parse(key->write(*key, recipe, true)) : json();
}

/// The value as an integer if the transformers class requires one: it refuses 256.0 for 256.
json typed_as(const HfKey& key, json value) {
  if (!key.missing.is_number_integer() || !value.is_number_float()) return value;
  const double number = value.get<double>();
  return number == std::floor(number) ? json(static_cast<int64_t>(number)) : value;
}

/// Adds the keys of the transformers class for layers with a window.
void add_windows(const ModelConfig& model, ordered_json& out) {
  const WindowLayers kind = model.family->windows;
  if (kind == WindowLayers::none) return;
  const bool some = model.sliding_window.has_value(), nth = kind == WindowLayers::but_every_nth;
  out["sliding_window"] = some ? ordered_json(*model.sliding_window) : ordered_json();
  if (kind == WindowLayers::all) return;
  if (!nth) out["use_sliding_window"] = some;
  // The transformers class always makes a window mask, so write a window that hides nothing. Without
  // layer_types some layers would use it.
  if (nth && !some) out["sliding_window"] = model.max_position_embeddings;
  if (!some && !nth) return;
  out["layer_types"] = ordered_json::array();
  for (int64_t i = 0; i < model.num_hidden_layers; ++i)
    out["layer_types"].push_back(model.window(i) > 0 ? "sliding_attention" : "full_attention");
}

/// Writes rope_scaling with the keys that the transformers class of the family accepts. `rope`: all obeyed
/// keys.
void add_rope_scaling(const ModelConfig& model, ordered_json rope, ordered_json& out) {
  const RopeType type = model.rope_scaling.type;
  if (type != RopeType::llama3)
    for (const char* key : {"low_freq_factor", "high_freq_factor"}) rope.erase(key);
  if (type == RopeType::linear) rope.erase("original_max_position_embeddings");
  if (type == RopeType::longrope && find_hf_key(*model.family->hf_keys, "original_max_position_embeddings")) {
    // The class of the older generation accepts three keys, and derives the factor from the positions.
    rope["type"] = rope.at("rope_type");
    rope.erase("rope_type");
    const RopeScaling& s = model.rope_scaling;
    if (s.factor == longrope_factor(model)) rope.erase("factor");
  }
  if (type == RopeType::none)  // a class that scales by default would use its default for null
    rope = model.family->hf_default_rope.empty() ? ordered_json() : ordered_json{{"rope_type", "default"}};
  out["rope_scaling"] = rope;
}

/// Copies keys of an older config.json that do not change the computation, except those about how it was
/// saved.
void take_harmless(const std::string& base, const std::vector<HfKey>& keys, ordered_json& out) {
  if (base.empty() || !path_exists(base)) return;
  std::string error;
  const json root = data::parse_strict(read_text_file(base, kMaxConfigBytes), 32, error);
  if (!root.is_object()) return;
  for (const auto& [name, value] : root.items()) {
    const HfKey* key = find_hf_key(keys, name);
    if (key && key->use == HfUse::harmless && !out.contains(name) && name != "dtype" &&
        name != "torch_dtype" && name != "transformers_version" && !name.starts_with("_"))
      out[name] = value;
  }
}

/// transformers reads the score at the last token other than pad_token_id. null if that is also a token that
/// ends texts.
void set_padding(ordered_json& config) {
  const ordered_json none, pad = config.value("pad_token_id", none), end = config.value("eos_token_id", none);
  const bool ends = end.is_array() ? std::find(end.begin(), end.end(), pad) != end.end() : end == pad;
  if (ends) config["pad_token_id"] = none;
}

}  // namespace

std::string hf_config_text(const Recipe& recipe, DType dtype, const std::string& base) {
  const Family& family = *recipe.model.family;
  const std::vector<HfKey>& keys = *family.hf_keys;
  const bool scores = recipe.model.scores_texts;
  ordered_json out{{"architectures", json::array({scores ? family.hf_score_class : family.hf_class})},
                   {"model_type", family.name}};
  if (scores) {  // one label: a score
    out["id2label"] = {{"0", "LABEL_0"}};
    out["label2id"] = {{"LABEL_0", 0}};
  }
  ordered_json rope = ordered_json::object();
  for (const HfKey& key : keys) {
    const size_t dot = key.name.find('.');
    if (dot != std::string::npos) {  // write rope_scaling, which both generations of transformers read
      if (key.use != HfUse::obeyed || key.name.substr(0, dot) != "rope_scaling") continue;
      const std::string leaf = key.name.substr(dot + 1);
      if (leaf == "type" || find_hf_key(keys, leaf)) continue;
      if (json value = value_of(recipe, key.path); !value.is_null()) rope[leaf] = std::move(value);
    } else if (key.use == HfUse::obeyed && !key.alias) {
      if (json value = value_of(recipe, key.path); !value.is_null() || key.null_sets)
        out[key.name] = typed_as(key, in_config(key, value));
    } else if (key.use == HfUse::harmless && !key.path.empty()) {
      out[key.name] = value_of(recipe, key.path);
    } else if (key.use == HfUse::required && !key.accepted.front().is_null() && !is_common(key.name)) {
      out[key.name] = key.accepted.front();
    }
  }
  if (rope.contains("rope_type")) add_rope_scaling(recipe.model, std::move(rope), out);
  add_windows(recipe.model, out);
  if (family.traits.multi_token_prediction)
    out["num_nextn_predict_layers"] = recipe.model.num_nextn_predict_layers;
  if (find_hf_key(keys, "first_k_dense_replace"))
    out["first_k_dense_replace"] = std::max<int64_t>(0, recipe.model.moe.first_dense());
  if (const HfKey* key = find_hf_key(keys, "topk_method"); key && key->use == HfUse::special) {
    const MoeConfig& moe = recipe.model.moe;
    out["topk_method"] = moe.n_group > 1 ? "group_limited_greedy" : "greedy";
    out["n_group"] = moe.n_group;
    out["topk_group"] = moe.topk_group;
  }
  if (find_hf_key(keys, "router_aux_loss_coef") && recipe.model.moe.balance == BalanceLoss::hf) {
    out["output_router_logits"] = true;
    out["router_aux_loss_coef"] = recipe.model.moe.balance_coeff;
  }
  out["torch_dtype"] = torch_name(dtype);  // the older name, which both generations read
  take_harmless(base, keys, out);
  if (scores) set_padding(out);
  return out.dump(2) + "\n";
}

void check_hf_config(const std::string& path, const Recipe& recipe) {
  const auto refuse = [&](const std::string& why) {
    fail(ExitCode::usage, "a config.json of {} cannot say what this model is: {}", recipe.model.family->name,
         why);
  };
  Recipe back;
  try {
    std::vector<std::string> settings{"model.from=" + path, "data.seq_length=1"};
    // A recipe must set it explicitly, regardless of the file.
    if (const int64_t n = recipe.model.num_nextn_predict_layers; n > 0)
      settings.push_back(fmt::format("model.num_nextn_predict_layers={}", n));
    back = parse_recipe("{}", "config.json", settings);
  } catch (const Error& e) {
    refuse(e.what());
  }
  const auto there = model_settings(back.model), here = model_settings(recipe.model);
  const std::map<std::string, std::string> read(there.begin(), there.end());
  std::string differs;
  for (const auto& [key, value] : here) {
    const recipe::Key* row = recipe::find_key("model." + key);
    const auto at = read.find(key);
    const bool trained = row && (row->on_resume == recipe::OnResume::any ||
                                 row->on_resume == recipe::OnResume::both_or_no);  // chosen by each run
    if ((at == read.end() && says_nothing(value)) || trained || (at != read.end() && at->second == value))
      continue;
    differs += fmt::format("{}model.{} = {}{}", differs.empty() ? "" : ", ", key, value,
                           at == read.end() ? "" : fmt::format(" (read back as {})", at->second));
  }
  if (!differs.empty()) refuse(differs);
}

}  // namespace ltrain
