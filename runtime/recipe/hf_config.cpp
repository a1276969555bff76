// A Hugging Face config.json as model.* keys. Keys that change what is computed must have the value that this
// build computes; keys that do not matter to training are dropped, and unknown ones are named in a note.
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/core/error.h"
#include "runtime/recipe/given.h"
#include "runtime/recipe/schema.h"

namespace ltrain::recipe {

namespace {

using nlohmann::json;

constexpr size_t kMaxBytes = 1 << 20;
constexpr int kMaxDepth = 32;

/// Do not matter to training from tokens.
bool is_ignored(const std::string& k) {
  static const std::set<std::string> names = {"architectures",
                                              "bos_token_id",
                                              "eos_token_id",
                                              "pad_token_id",
                                              "sep_token_id",
                                              "decoder_start_token_id",
                                              "torch_dtype",
                                              "dtype",
                                              "transformers_version",
                                              "use_cache",
                                              "_name_or_path",
                                              "name_or_path",
                                              "_commit_hash",
                                              "task_specific_params",
                                              "gradient_checkpointing",
                                              "return_dict",
                                              "output_hidden_states",
                                              "output_attentions",
                                              "id2label",
                                              "label2id",
                                              "pretraining_tp",
                                              "reorder_and_upcast_attn",
                                              "_attn_implementation",
                                              "n_ctx",
                                              "max_length",
                                              "auto_map",
                                              "unsloth_version",
                                              "unsloth_fixed",
                                              "model_max_length",
                                              "tokenizer_class",
                                              "use_return_dict"};
  return names.count(k) || k.compare(0, 8, "summary_") == 0;
}

bool is_mixture(const std::string& type) {
  return type == "mixtral" || type == "qwen3_moe" || type == "olmoe";
}

/// Keys of mixtures, which have a section here.
std::string moe_key(const std::string& key) {
  static const std::map<std::string, std::string> names = {{"num_experts", "num_experts"},
                                                           {"num_local_experts", "num_experts"},
                                                           {"num_experts_per_tok", "top_k"},
                                                           {"moe_intermediate_size", "intermediate_size"},
                                                           {"decoder_sparse_step", "layer_step"},
                                                           {"mlp_only_layers", "dense_layers"},
                                                           {"norm_topk_prob", "router.norm_topk_prob"}};
  const auto it = names.find(key);
  return it == names.end() ? "" : "model.moe." + it->second;
}

/// The value that this build computes, by key; anything else is refused.
const std::vector<std::pair<std::string, json>>& required_values(const std::string& type) {
  static const std::vector<std::pair<std::string, json>> for_gpt2 = {
      {"activation_function", "gelu_new"},
      {"scale_attn_weights", true},
      {"scale_attn_by_inverse_layer_idx", false},
      {"add_cross_attention", false},
      {"is_encoder_decoder", false}};
  static const std::vector<std::pair<std::string, json>> for_llama = {
      {"hidden_act", "silu"},        {"attention_bias", false},   {"mlp_bias", false},
      {"is_encoder_decoder", false}, {"sliding_window", nullptr}, {"quantization_config", nullptr},
      {"partial_rotary_factor", 1.0}};
  static const std::vector<std::pair<std::string, json>> for_mixtures = [] {
    std::vector<std::pair<std::string, json>> all = for_llama;
    for (const char* key : {"use_sliding_window", "scoring_func"}) all.emplace_back(key, false);
    all.back().second = "softmax";
    all.emplace_back("router_jitter_noise", 0.0);
    all.emplace_back("clip_qkv", nullptr);
    return all;
  }();
  return type == "gpt2" ? for_gpt2 : is_mixture(type) ? for_mixtures : for_llama;
}

/// What a missing key means to Hugging Face's own class.
const std::vector<std::pair<const char*, const char*>>& class_defaults(const std::string& type) {
  static const std::vector<std::pair<const char*, const char*>> for_gpt2 = {
      {"vocab_size", "50257"},
      {"hidden_size", "768"},
      {"num_hidden_layers", "12"},
      {"num_attention_heads", "12"},
      {"max_position_embeddings", "1024"},
      {"rms_norm_eps", "1e-05"},
      {"initializer_range", "0.02"},
      {"embd_pdrop", "0.1"},
      {"attn_pdrop", "0.1"},
      {"resid_pdrop", "0.1"}};
  static const std::vector<std::pair<const char*, const char*>> for_llama = {
      {"vocab_size", "32000"},     {"hidden_size", "4096"},       {"intermediate_size", "11008"},
      {"num_hidden_layers", "32"}, {"num_attention_heads", "32"}, {"max_position_embeddings", "2048"},
      {"rms_norm_eps", "1e-06"},   {"initializer_range", "0.02"}, {"rope_theta", "10000.0"}};
  static const std::vector<std::pair<const char*, const char*>> for_mixtral = {
      {"vocab_size", "32000"},
      {"hidden_size", "4096"},
      {"intermediate_size", "14336"},
      {"num_hidden_layers", "32"},
      {"num_attention_heads", "32"},
      {"num_key_value_heads", "8"},
      {"rms_norm_eps", "1e-05"},
      {"initializer_range", "0.02"},
      {"rope_theta", "1000000.0"},
      {"moe.num_experts", "8"},
      {"moe.top_k", "2"},
      {"max_position_embeddings", "131072"},
      {"moe.router.norm_topk_prob", "true"}};
  static const std::vector<std::pair<const char*, const char*>> for_qwen3_moe = {
      {"vocab_size", "151936"},
      {"hidden_size", "2048"},
      {"intermediate_size", "6144"},
      {"num_hidden_layers", "24"},
      {"num_attention_heads", "32"},
      {"num_key_value_heads", "4"},
      {"max_position_embeddings", "32768"},
      {"rms_norm_eps", "1e-06"},
      {"initializer_range", "0.02"},
      {"rope_theta", "10000.0"},
      {"moe.num_experts", "128"},
      {"moe.top_k", "8"},
      {"moe.intermediate_size", "768"},
      {"moe.router.norm_topk_prob", "false"}};
  static const std::vector<std::pair<const char*, const char*>> for_olmoe = {
      {"vocab_size", "50304"},
      {"hidden_size", "2048"},
      {"intermediate_size", "2048"},
      {"num_hidden_layers", "16"},
      {"num_attention_heads", "16"},
      {"max_position_embeddings", "4096"},
      {"rms_norm_eps", "1e-05"},
      {"initializer_range", "0.02"},
      {"rope_theta", "10000.0"},
      {"moe.num_experts", "64"},
      {"moe.top_k", "8"},
      {"moe.router.norm_topk_prob", "false"}};
  return type == "gpt2"        ? for_gpt2
         : type == "mixtral"   ? for_mixtral
         : type == "qwen3_moe" ? for_qwen3_moe
         : type == "olmoe"     ? for_olmoe
                               : for_llama;
}

class ConfigReader {
 public:
  ConfigReader(const std::string& path, Given& given, Problems& problems)
      : path_(path), given_(given), problems_(problems) {}

  void read(const json& root) {
    auto type = root.find("model_type");
    if (type == root.end() || !type->is_string())
      return wrong("model_type", "is missing; a config.json of Hugging Face names the architecture there");
    const std::string name = *type;
    for (const auto& [key, value] : required_values(name))
      if (auto it = root.find(key); it != root.end() && *it != value && !(value == false && it->is_null()))
        wrong(key, fmt::format("= {}: this build computes {} only", it->dump(), value.dump()));
    for (const auto& [key, value] : root.items()) take(key, value, name);
    for (const auto& [key, value] : class_defaults(name)) {
      Node node;
      node.kind = Node::scalar;
      node.text = value;
      node.place = {path_, 0, 0};
      given_.values.emplace(std::string("model.") + key, GivenValue{node, node.place, key});
    }
    if (!unknown_.empty()) given_.notes.push_back(fmt::format("{}: ignored, not known: {}", path_, unknown_));
  }

 private:
  void wrong(const std::string& key, const std::string& text) {
    problems_.add({path_, 0, 0}, key + (text[0] == '=' ? " " : ": ") + text);
  }

  void take(const std::string& key, const json& value, const std::string& type) {
    for (const auto& [name, unused] : required_values(type))
      if (name == key) return;
    if (is_ignored(key)) return;
    if (key == "rope_scaling" || key == "rope_parameters") return rope(key, value);
    if (const std::string path = moe_key(key); is_mixture(type) && !path.empty()) {
      if (!value.is_null()) set(path, key, value);
      return;
    }
    const Key* row = find_key("model." + key);
    if (!row) row = find_alias("model." + key);
    if (!row || row->path == "model.from") {
      unknown_ += (unknown_.empty() ? "" : ", ") + key;
      return;
    }
    if (value.is_null()) return;  // n_inner: null, head_dim: null: the default that follows
    set(row->path, key, value);
  }

  /// Both generations: rope_scaling with rope_type or the older `type`; rope_parameters with rope_theta
  /// inside.
  void rope(const std::string& section, const json& value) {
    if (value.is_null()) return;
    if (!value.is_object()) return wrong(section, "is not an object");
    const json* type = value.contains("rope_type") ? &value["rope_type"]
                       : value.contains("type")    ? &value["type"]
                                                   : nullptr;
    for (const auto& [key, v] : value.items()) {
      const std::string name = section + "." + key;
      if (key == "type" && type != &v) {
        if (v != *type) wrong(name, fmt::format("= {}: differs from rope_type, {}", v.dump(), type->dump()));
      } else if (key == "rope_theta") {
        set("model.rope_theta", name, v);
      } else if (key == "type" || find_key("model.rope_scaling." + key)) {
        set("model.rope_scaling." + (key == "type" ? std::string("rope_type") : key), name, v);
      } else {
        unknown_ += (unknown_.empty() ? "" : ", ") + name;
      }
    }
  }

  void set(const std::string& path, const std::string& written, const json& value) {
    Node node;
    node.place = {path_, 0, 0};
    const auto fill = [](Node& to, const json& from) {
      to.kind = from.is_null() ? Node::null : Node::scalar;
      to.text = from.is_string() ? from.get<std::string>() : from.dump();
      to.quoted = from.is_string();
    };
    const bool list = value.is_array() && find_key(path)->type.starts_with("list");
    if (value.is_object() || (value.is_array() && !list)) return wrong(written, "is not a single value");
    fill(node, value);
    if (list) {
      node.kind = Node::list;
      for (const json& item : value) {
        if (item.is_object() || item.is_array()) return wrong(written, "is not a list of single values");
        fill(node.items.emplace_back(), item);
        node.items.back().place = node.place;
      }
    }
    if (auto mine = from_here_.find(path); mine != from_here_.end()) {
      if (mine->second.text != node.text)
        wrong(written, fmt::format("= {}: {} of the same file says {}", show(node),
                                   given_.values[path].written_as, mine->second.text));
      return;
    }
    if (auto it = given_.values.find(path); it != given_.values.end()) {
      if (show(it->second.value) != show(node))
        given_.notes.push_back(fmt::format("{}: {} = {} replaces {} of {}", it->second.place.text(), path,
                                           show(it->second.value), show(node), path_));
      return;
    }
    from_here_[path] = node;
    given_.values[path] = {node, node.place, written};
  }

  std::string path_;
  Given& given_;
  Problems& problems_;
  std::map<std::string, Node> from_here_;
  std::string unknown_;
};

}  // namespace

void add_hf_config(const std::string& path, const Place& from, Given& given, Problems& problems) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    problems.add(from, fmt::format("model.from = {}: cannot be read: {}", path, std::strerror(errno)));
    return;
  }
  std::string text(kMaxBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxBytes || in.bad()) {
    problems.add(from, fmt::format("model.from = {}: not a config.json: a folder, or more than {} bytes",
                                   path, kMaxBytes));
    return;
  }
  bool too_deep = false, twice = false;
  std::string twice_key;
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    too_deep = too_deep || depth > kMaxDepth;
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second &&
        !twice) {
      twice = true;
      twice_key = parsed.get<std::string>();
    }
    return !too_deep;
  };
  const json root = json::parse(text, watch, /*allow_exceptions=*/false);
  if (root.is_discarded() || !root.is_object() || too_deep) {
    problems.add(from, fmt::format("model.from = {}: not a JSON object", path));
    return;
  }
  if (twice) {
    problems.add({path, 0, 0}, fmt::format("{}: given twice", twice_key));
    return;
  }
  ConfigReader(path, given, problems).read(root);
}

}  // namespace ltrain::recipe
