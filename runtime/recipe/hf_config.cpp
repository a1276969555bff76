// Translation of a Hugging Face config.json into model.* keys. Every key of the file is obeyed, refused, or
// known to be harmless (models/families/hf_keys.h).
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "models/families/hf_keys.h"
#include "runtime/files/strict_json.h"
#include "runtime/recipe/hub_name.h"
#include "runtime/recipe/raw_values.h"
#include "runtime/recipe/read_file.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain::recipe {

namespace {

using nlohmann::json;

constexpr int kMaxConfigDepth = 32;
constexpr int64_t kMostLayers = 10000;  // model.num_hidden_layers
constexpr const char* kPattern = "sliding_window_pattern";
constexpr const char* kRopeParameters = "rope_parameters";
constexpr const char* kRopeScaling = "rope_scaling";
constexpr const char* kRopeType = "model.rope_scaling.rope_type";
constexpr const char* kDynamic = "dynamic";
/// Pairs of a model_type and the family that computes the same.
constexpr std::pair<const char*, const char*> kOtherNames[] = {{"aquila", "llama"}};
constexpr size_t kLongestValue = 200;  // bytes of a value in a message

std::string value_text(const json& value) { return printable(value.dump(), kLongestValue); }

class ConfigReader {
 public:
  ConfigReader(const std::string& path, RawValues& given, Diagnostics& diagnostics)
      : path_(path), given_(given), diagnostics_(diagnostics) {}

  void read(const json& given) {
    json root = given;
    if (root.contains("text_config"))
      return wrong("text_config",
                   "is a part of a model of more than texts; ltrain trains the language model: save that "
                   "alone with transformers, or take text_config as a config.json of its own");
    const auto type = root.find("model_type");
    if (type == root.end() || !type->is_string())
      return wrong("model_type", "is missing; a config.json of Hugging Face names the architecture there");
    type_ = *type;
    for (const auto& [name, family] : kOtherNames)
      if (type_ == name) type_ = family;
    set("model.architecture", "model_type", type_);
    family_ = find_family(type_);
    if (!family_) return;  // an error about the architecture is reported elsewhere
    keys_ = family_->hf_keys.get();
    read_ignored(root);
    if (family_->local_rotation && !ignored_.count(kRopeParameters)) rotations_by_layer(root);
    if (!family_->hf_default_rope.empty()) default_rope(root);
    quantization(root);
    for (const auto& [key, value] : root.items())
      if (!ignored_.count(key)) take(key, value);
    for (const char* section : {"rope_parameters", "rope_scaling"})
      if (root.contains(section) && !ignored_.count(section)) {
        dynamic_rope(root, section);
        original_positions(root, section);
      }
    sliding_window(root);
    if (family_->local_rotation && !given_.values.count("model.sliding_window")) no_local_rotation();
    balance_loss(root);
    dense_layers(root);
    expert_groups(root);
    for (const HfKey& key : *keys_) {  // defaults of the class for keys in neither recipe nor file
      const bool fixed = key.use == HfUse::required && !key.path.empty();
      const json& value = fixed ? key.accepted.front() : key.missing;
      if ((!fixed && key.use != HfUse::obeyed) || key.alias || value.is_null() || derived_.count(key.path))
        continue;
      given_.values.emplace(key.path, RawValue{scalar(in_recipe(key, value)), {path_, 0, 0}, key.name});
    }
  }

 private:
  void wrong(const std::string& key, const std::string& text) {
    diagnostics_.add({path_, 0, 0}, printable(in_file(key)) + (text[0] == '=' ? " " : ": ") + text);
  }

  std::string in_file(std::string key) const {
    if (by_layer_ && key.starts_with(kRopeParameters))
      key.insert(std::string_view(kRopeParameters).size(), ".full_attention");
    return key;
  }

  /// Sets the rotation of a class that scales by default. Some of these classes rotate differently across
  /// transformers versions if the file has a null, so null is an error.
  void default_rope(json& root) {
    bool said = false;
    for (const char* section : {kRopeParameters, kRopeScaling}) {
      const auto it = root.find(section);
      if (it == root.end() || ignored_.count(section)) continue;
      if (it->is_null())
        return wrong(section,
                     fmt::format("= null: generations of transformers take it for different rotations; "
                                 "nearest valid value: {{\"rope_type\": \"default\"}}, or {}",
                                 family_->hf_default_rope));
      said = true;
    }
    if (!said) root[kRopeScaling] = json::parse(family_->hf_default_rope);
  }

  /// Checks quantization_config. FP8 weights and MXFP4 expert weights are accepted, and the tensors
  /// themselves give their format (runtime/weights).
  void quantization(const json& root) {
    constexpr const char* kKey = "quantization_config";
    const auto it = root.find(kKey);
    if (it == root.end() || it->is_null() || ignored_.count(kKey)) return;
    const bool stacked = family_->hf_layout.stacked_experts;
    const json method = it->is_object() ? it->value("quant_method", json()) : json();
    if (stacked ? method == "mxfp4"
                : method == "fp8" && it->value("weight_block_size", json()) == json::array({128, 128}) &&
                      it->value("fmt", json("e4m3")) == "e4m3")
      return;
    wrong(kKey, fmt::format("= {}: of weights in fewer bits this build reads {} alone; import what it was "
                            "quantized from",
                            value_text(*it),
                            stacked ? "quant_method \"mxfp4\""
                                    : "quant_method \"fp8\" with weight_block_size [128, 128]"));
  }

  /// Reads rope_parameters given per kind of layer. Values of layers with a window are read here. Values of
  /// the other layers stay in `root`.
  void rotations_by_layer(json& root) {
    const auto it = root.find(kRopeParameters);
    if (it == root.end() || !it->is_object()) return;
    const json by_layer = *it;
    root.erase(it);
    for (const auto& [kind, section] : by_layer.items()) {
      const std::string name = std::string(kRopeParameters) + "." + kind;
      if (kind != "full_attention" && kind != "sliding_attention")
        wrong(name, fmt::format("= {}: transformers' {} has full_attention and sliding_attention there",
                                value_text(section), type_));
      else if (!section.is_null() && !section.is_object())
        wrong(name, "is not an object");
      else if (kind == "full_attention" && !section.is_null())
        root[kRopeParameters] = section;
      else if (!section.is_null())
        for (const auto& [key, value] : section.items()) {
          if (key == "rope_theta" && value.is_null())
            wrong(name + "." + key, "= null: needs a value; remove the key to take the default");
          else if (key == "rope_theta")
            set("model.rope_local_base_freq", name + "." + key, value);
          else if ((key != "rope_type" && key != "type") || value != "default")
            wrong(name + "." + key, fmt::format("= {}: this build rotates layers with a window by rope_theta "
                                                "alone; nearest valid value: rope_type: \"default\"",
                                                value_text(value)));
        }
    }
    by_layer_ = root.contains(kRopeParameters);
  }

  /// Returns the object that contains a key, and the key's name in it: "rope_scaling.factor" is a key of an
  /// object. The object is null if there is no such key.
  static std::pair<json*, std::string> holder(json& root, const std::string& name) {
    if (root.contains(name)) return {&root, name};
    const size_t dot = name.find('.');
    if (dot == std::string::npos) return {nullptr, name};
    const auto inner = root.find(name.substr(0, dot));
    return inner == root.end() || !inner->is_object() ? std::pair<json*, std::string>{nullptr, name}
                                                      : holder(*inner, name.substr(dot + 1));
  }

  /// Row of a key, which may be in an object. Rotations per kind of layer use the rows of plain rotations.
  const HfKey* row_of(const std::string& name) const {
    const size_t first = name.find('.'), last = name.rfind('.');
    return find_hf_key(*keys_, first == last ? name : name.substr(0, first) + name.substr(last));
  }

  /// Reads model.from_ignore: keys that the user declares irrelevant. Keys inside objects are removed from
  /// `root`.
  void read_ignored(json& root) {
    const auto it = given_.values.find("model.from_ignore");
    if (it == given_.values.end()) return;
    for (const Node& item : it->second.value.items) {
      const HfKey* key = row_of(item.text);
      const auto [object, name] = holder(root, item.text);
      const auto refuse = [&](const std::string& why) {
        diagnostics_.add(it->second.place,
                         fmt::format("model.from_ignore: {}: {}", printable(item.text), why));
      };
      if (!object && !ignored_.count(item.text))
        refuse(fmt::format("is not a key of {}", path_));
      else if (item.text == "model_type" || (key && key->use == HfUse::obeyed))
        refuse(fmt::format("sets {}, and cannot be passed over; set that key in the recipe",
                           key->path.empty() ? "model.architecture" : key->path));
      else if (item.text == "sliding_window" && family_->local_rotation)
        refuse(fmt::format(
            "also says which layers of {} rotate by rope_local_base_freq; set model.sliding_window in "
            "the recipe",
            type_));
      else if (ignored_.insert(item.text).second) {
        given_.notes.push_back(fmt::format("{}: {} = {} is passed over, as model.from_ignore says", path_,
                                           printable(item.text), value_text((*object)[name])));
        if (object != &root) object->erase(name);
      }
    }
  }

  void unknown(const std::string& name, const json& value) {
    const std::string key = printable(in_file(name));
    wrong(name, fmt::format("= {}: is not a key of {} that ltrain knows, and may change what the model "
                            "computes; if it does not, set model.from_ignore: [{}], or --from-ignore {} of a "
                            "command without a recipe",
                            value_text(value), type_, key, key));
  }

  void take(const std::string& name, const json& value) {
    const HfKey* key = find_hf_key(*keys_, name);
    if (!key || name.find('.') != std::string::npos) return unknown(name, value);
    if (name == "rope_parameters" || name == "rope_scaling") return rope(name, value);
    take(*key, value);
  }

  void take(const HfKey& key, const json& value) {
    if (key.use == HfUse::required) {
      if (std::find(key.accepted.begin(), key.accepted.end(), value) == key.accepted.end())
        wrong(key.name, fmt::format("= {} ({}): this build computes {} only", value_text(value), key.reason,
                                    key.accepted.front().dump()));
    } else if (key.use == HfUse::obeyed) {
      if (!value.is_null() || key.null_sets) return set(key.path, key.name, in_recipe(key, value));
      if (key.null_derives)
        derived_.insert(key.path);
      else
        wrong(key.name, fmt::format("= null: needs a value{}",
                                    key.alias || key.missing.is_null()
                                        ? std::string("; remove the key to take the default")
                                        : fmt::format("; without the key it is {}", key.missing.dump())));
    }
  }

  /// Reads the rotation of both transformers generations: rope_scaling with rope_type or the older `type`,
  /// and rope_parameters with rope_theta inside.
  void rope(const std::string& section, const json& value) {
    if (value.is_null()) return;
    if (!value.is_object()) return wrong(section, "is not an object");
    const json* type = rope_type(value);
    const bool dynamic = type && *type == kDynamic;
    if (dynamic && !family_->rope_types.empty())
      return wrong(section, fmt::format("= {}: transformers' {} has no rope_type {}", value_text(value),
                                        type_, kDynamic));
    const json kind = type ? json(read_as(*type)) : json();
    for (const auto& [key, v] : value.items()) {
      const std::string name = section + "." + key;
      const HfKey* row = find_hf_key(*keys_, name);
      if (!row)
        unknown(name, v);
      else if (key == "type" && v != *type)
        wrong(name, fmt::format("= {}: differs from rope_type, {}", value_text(v), value_text(*type)));
      else if (dynamic && (key == "rope_type" || key == "type"))
        set(kRopeType, name, of_recipe(kRopeType) ? v : json("default"));
      else if (dynamic && (key == "factor" || key == "original_max_position_embeddings"))
        continue;  // read by dynamic_rope
      else if (key != "type" || type == &v)
        take(*row, &v == type ? kind : v);
    }
    if (!type || !type->is_string()) return;
    // linear needs no original length. For yarn and longrope it defaults to max_position_embeddings, as in
    // transformers.
    static const std::map<std::string, std::vector<const char*>> needed = {
        {"linear", {"factor"}},
        {"llama3", {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}},
        {"yarn", {"factor"}},
        {"longrope", {"short_factor", "long_factor"}}};
    const auto keys = needed.find(kind.get<std::string>());
    if (keys == needed.end()) return;
    for (const char* key : keys->second)
      if (!value.contains(key))
        wrong(section + "." + key, fmt::format("is missing, and rope_type {} needs it", keys->first));
    if (keys->first != "llama3")
      for (const char* key : {"low_freq_factor", "high_freq_factor"})
        if (value.contains(key) && !value[key].is_null())
          wrong(section + "." + key, fmt::format("= {}: has no meaning with rope_type {}; remove the key",
                                                 value_text(value[key]), keys->first));
  }

  /// Rope type that the transformers class uses for `type`.
  json read_as(const json& type) const {
    for (const RopeTypeName& name : family_->hf_rope_types)
      if (type == name.written) return std::string(to_string(name.read_as));
    return type;
  }

  /// Returns whether the recipe itself gives this key, which then takes precedence.
  bool of_recipe(const std::string& path) const {
    return given_.values.count(path) && !from_here_.count(path);
  }

  static const json* rope_type(const json& section) {
    return section.contains("rope_type") ? &section["rope_type"]
           : section.contains("type")    ? &section["type"]
                                         : nullptr;
  }

  /// Reads rope_type dynamic. It changes the angles of a sequence longer than max_position_embeddings, by a
  /// base derived from its length. Shorter sequences rotate as without it, and a recipe has no longer ones.
  void dynamic_rope(const json& root, const std::string& section) {
    const json& values = root[section];
    const json* type = values.is_object() ? rope_type(values) : nullptr;
    if (!type || *type != kDynamic || of_recipe(kRopeType)) return;
    const std::string name = section + (values.contains("rope_type") ? ".rope_type" : ".type");
    for (const char* key : {"factor", "original_max_position_embeddings"}) {
      const auto it = values.find(key);
      const std::string written = section + "." + key;
      if (it == values.end()) {
        if (key == std::string_view("factor"))
          wrong(written, fmt::format("is missing, and rope_type {} needs it", kDynamic));
      } else if (!it->is_number() || *it < 1) {
        wrong(written, fmt::format("= {}: needs a number of at least 1", value_text(*it)));
      }
    }
    const json of_file = value(root, "max_position_embeddings");
    if (!of_file.is_number_integer()) return;  // an error about the value is reported elsewhere
    const int64_t positions = of_file.get<int64_t>(), here = size("max_position_embeddings");
    if (here > positions)
      return wrong(name, fmt::format("= \"{}\": rotates by an angle that depends on the length of a sequence "
                                     "of more than max_position_embeddings ({}), and "
                                     "model.max_position_embeddings is {}; nearest valid value: {}",
                                     kDynamic, positions, here, positions));
    given_.notes.push_back(
        fmt::format("{}: {} = \"{}\" changes nothing up to max_position_embeddings ({}), and no sequence is "
                    "longer here; ltrain export writes the default in its place",
                    path_, in_file(name), kDynamic, positions));
  }

  /// Reads the original training length for rope_type yarn and longrope. If it is missing, transformers uses
  /// all positions. A class that reads it at the top level ignores it inside the section.
  void original_positions(const json& root, const std::string& section) {
    constexpr const char* key = "original_max_position_embeddings";
    const json& values = root[section];
    const json* type = values.is_object() ? rope_type(values) : nullptr;
    const json kind = type ? read_as(*type) : json();
    if (kind != "yarn" && kind != "longrope") return;
    if (const HfKey* beside = find_hf_key(*keys_, key)) {
      if (values.contains(key) && !root.contains(key) && values[key] != beside->missing)
        wrong(section + "." + key,
              fmt::format("= {}: transformers' {} reads {} beside {}, where it is not written and {} then",
                          value_text(values[key]), type_, key, section, beside->missing.dump()));
      return;
    }
    if (values.contains(key)) return;
    if (const json of_file = value(root, "max_position_embeddings"); of_file.is_number_integer())
      set(std::string("model.rope_scaling.") + key, "max_position_embeddings", of_file);
  }

  /// Value of a special key, or the default of the transformers class.
  json value(const json& root, const char* name) const {
    return root.contains(name) && !ignored_.count(name) ? root[name] : find_hf_key(*keys_, name)->missing;
  }

  /// Integer from the recipe, or the default of the transformers class.
  int64_t size(const char* name) const {
    int64_t n = 0;
    if (const auto it = given_.values.find(std::string("model.") + name); it != given_.values.end())
      read_integer(it->second.value, n);
    else
      n = find_hf_key(*keys_, name)->missing.get<int64_t>();
    return n;
  }

  /// Reads the layers with a window from sliding_window, use_sliding_window, max_window_layers and
  /// layer_types. A window that hides no token counts as no window.
  void sliding_window(const json& root) {
    if (!find_hf_key(*keys_, "sliding_window") || ignored_.count("sliding_window")) return;
    const json window = value(root, "sliding_window"), use = value(root, "use_sliding_window"),
               types = value(root, "layer_types"), first = value(root, "max_window_layers");
    if (!use.is_null() && !use.is_boolean())
      return wrong("use_sliding_window", fmt::format("= {}: needs true or false", value_text(use)));
    if (!window.is_null() && !(window.is_number_integer() && window > 0))
      return wrong("sliding_window",
                   fmt::format("= {}: needs a number of tokens, or null", value_text(window)));
    const WindowLayers kind = family_->windows;
    if (find_hf_key(*keys_, kPattern))
      if (const json nth = value(root, kPattern); !nth.is_number_integer() || nth < 1 || nth > kMostLayers)
        return wrong(kPattern, fmt::format("= {}: needs a number of layers, of which the last has no window",
                                           value_text(nth)));
    if (first.is_null() ? kind == WindowLayers::last : !(first.is_number_integer() && first >= 0))
      return wrong("max_window_layers", fmt::format("= {}: needs a number of layers", value_text(first)));
    bool sliding = false;
    if (!types.is_null()) {
      if (!types.is_array()) return wrong("layer_types", "is not a list");
      for (const json& layer : types) {
        if (layer != "full_attention" && layer != "sliding_attention")
          return wrong("layer_types",
                       fmt::format("has {}: this build computes \"full_attention\" and \"sliding_attention\"",
                                   value_text(layer)));
        sliding = sliding || layer == "sliding_attention";
      }
    }
    // the class does not read it
    const bool unread = find_hf_key(*keys_, "use_sliding_window")->missing.is_null();
    const bool by_kind = kind == WindowLayers::all || kind == WindowLayers::but_every_nth;
    if (use == false && unread && by_kind && window.is_number() &&
        (window < size("max_position_embeddings") || family_->local_rotation))
      return wrong("use_sliding_window",
                   fmt::format("= false: transformers' {} does not read it, and has the sliding_window ({}); "
                               "nearest valid value: sliding_window: null, for a model without windows",
                               type_, window.get<int64_t>()));
    if (use == false || (window.is_null() && !sliding)) return;
    if (window.is_null()) return wrong("layer_types", "has sliding_attention, and sliding_window is null");
    const int64_t tokens = window.get<int64_t>(), positions = size("max_position_embeddings"),
                  layers = size("num_hidden_layers");
    // with local rotation these layers still rotate differently
    if (tokens >= positions && !family_->local_rotation) return;
    if (kind == WindowLayers::none)
      return wrong(
          "sliding_window",
          fmt::format(
              "= {}: transformers' {} has no windows; a window of at least model.max_position_embeddings "
              "({}) hides none; nearest valid value: null, or model.max_position_embeddings: {}",
              tokens, type_, positions, tokens));
    if (layers < 1 || layers > kMostLayers) return;  // an error about the value is reported elsewhere
    json of_layers = types;
    if (kind == WindowLayers::all) {
      for (const json& layer : types)
        if (layer != "sliding_attention")
          return wrong("layer_types",
                       fmt::format("has {}, and all layers of transformers' {} have the sliding_window ({})",
                                   value_text(layer), type_, tokens));
      of_layers = nullptr;
    } else if (types.is_null()) {
      const std::vector<bool> slide = sliding_layers(root, kind, first, layers);
      sliding = std::find(slide.begin(), slide.end(), true) != slide.end();
      of_layers = json::array();
      for (const bool s : slide) of_layers.push_back(s ? "sliding_attention" : "full_attention");
      if (!sliding) return;
    } else if (!sliding) {
      return;
    }
    set("model.sliding_window", "sliding_window", window);
    if (!of_layers.is_null()) set("model.layer_types", "layer_types", of_layers);
  }

  /// Interval of layers with full attention, for a config.json without a list of layers.
  int64_t full_attention_interval(const json& root) const {
    return find_hf_key(*keys_, kPattern) ? value(root, kPattern).get<int64_t>()
                                         : family_->defaults.full_attention_interval;
  }

  /// Removes the rotary base of layers with a window if there are no such layers.
  void no_local_rotation() {
    constexpr const char* kLocal = "model.rope_local_base_freq";
    derived_.insert(kLocal);
    if (from_here_.erase(kLocal)) given_.values.erase(kLocal);
  }

  /// One flag per layer: whether it has a window, for a config.json without a list of layers.
  std::vector<bool> sliding_layers(const json& root, WindowLayers kind, const json& first,
                                   int64_t layers) const {
    std::vector<bool> slide(static_cast<size_t>(layers));
    if (kind == WindowLayers::last) {
      for (int64_t i = first.get<int64_t>(); i < layers; ++i) slide[static_cast<size_t>(i)] = true;
      return slide;
    }
    if (kind == WindowLayers::but_every_nth) {
      const int64_t nth = full_attention_interval(root);
      for (int64_t i = 0; i < layers; ++i) slide[static_cast<size_t>(i)] = (i + 1) % nth != 0;
      return slide;
    }
    const json rotates = value(root, "no_rope_layers"), interval = value(root, "no_rope_layer_interval");
    for (int64_t i = 0; i < layers; ++i) {
      const size_t at = static_cast<size_t>(i);
      if (rotates.is_array())
        slide[at] = at < rotates.size() && rotates[at] == 0;
      else if (interval.is_number_integer() && interval > 0)
        slide[at] = (i + 1) % interval.get<int64_t>() == 0;
    }
    return slide;
  }

  /// Reads the balance loss. transformers adds router_aux_loss_coef times it if output_router_logits is true.
  void balance_loss(const json& root) {
    const HfKey* row = find_hf_key(*keys_, "router_aux_loss_coef");
    if (!row || row->use != HfUse::special || ignored_.count("output_router_logits")) return;
    const json on = value(root, "output_router_logits"), coeff = value(root, "router_aux_loss_coef");
    if (!on.is_boolean())
      return wrong("output_router_logits", fmt::format("= {}: needs true or false", value_text(on)));
    if (!coeff.is_number())
      return wrong("router_aux_loss_coef", fmt::format("= {}: needs a number", value_text(coeff)));
    if (on == false || coeff == 0) return;
    if (const auto it = given_.values.find("model.moe.balance.kind"); it != given_.values.end()) {
      given_.notes.push_back(fmt::format(
          "{}: model.moe.balance.kind = {} replaces the loss that output_router_logits of {} asks for",
          it->second.place.text(), show(it->second.value), path_));
      return;
    }
    set("model.moe.balance.kind", "output_router_logits", "hf");
    set("model.moe.balance.coeff", "router_aux_loss_coef", coeff);
  }

  /// Reads the number of first layers without experts.
  void dense_layers(const json& root) {
    constexpr const char* kFirst = "first_k_dense_replace";
    if (!find_hf_key(*keys_, kFirst) || ignored_.count(kFirst)) return;
    const json first = value(root, kFirst);
    const int64_t layers = size("num_hidden_layers");
    if (!first.is_number_integer() || first < 0 || first > kMostLayers || first >= layers)
      return wrong(kFirst, fmt::format("= {}: needs a number of layers below model.num_hidden_layers ({})",
                                       value_text(first), layers));
    json dense = json::array();
    for (int64_t i = 0; i < first.get<int64_t>(); ++i) dense.push_back(i);
    if (!dense.empty()) set("model.moe.dense_layers", kFirst, dense);
  }

  /// Reads expert groups. Only one topk_method chooses experts from groups.
  void expert_groups(const json& root) {
    constexpr const char* kMethod = "topk_method";
    const HfKey* row = find_hf_key(*keys_, kMethod);
    if (!row || row->use != HfUse::special || ignored_.count(kMethod)) return;
    const json method = value(root, kMethod);
    if (method == "greedy") return;
    if (method != "group_limited_greedy")
      return wrong(kMethod, fmt::format("= {}: transformers' {} has \"greedy\" and \"group_limited_greedy\"",
                                        value_text(method), type_));
    for (const char* key : {"n_group", "topk_group"}) {
      const json groups = value(root, key);
      if (!groups.is_number_integer())
        wrong(key, fmt::format("= {}: topk_method group_limited_greedy needs a number", value_text(groups)));
      else
        set(std::string("model.moe.router.") + key, key, groups);
    }
  }

  Node scalar(const json& value) const {
    Node node;
    node.place = {path_, 0, 0};
    node.kind = value.is_null() ? Node::null : Node::scalar;
    node.text = value.is_string() ? value.get<std::string>() : value.dump();
    node.quoted = value.is_string();
    return node;
  }

  void set(const std::string& path, const std::string& written, const json& value) {
    const bool list = value.is_array() && find_key(path)->type.starts_with("list");
    if (value.is_object() || (value.is_array() && !list)) return wrong(written, "is not a single value");
    Node node = scalar(value);
    if (list) {
      node.kind = Node::list;
      for (const json& item : value) {
        if (item.is_object() || item.is_array()) return wrong(written, "is not a list of single values");
        node.items.push_back(scalar(item));
      }
    }
    if (auto mine = from_here_.find(path); mine != from_here_.end()) {
      if (show(mine->second) != show(node))
        wrong(written, fmt::format("= {}: {} of the same file says {}", show(node),
                                   given_.values[path].written_as, show(mine->second)));
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

  std::string path_, type_;
  const Family* family_ = nullptr;
  const std::vector<HfKey>* keys_ = nullptr;  ///< keys of the family
  RawValues& given_;
  Diagnostics& diagnostics_;
  std::map<std::string, Node> from_here_;
  std::set<std::string> ignored_;
  bool by_layer_ = false;          ///< rope_parameters holds the values of its full_attention
  std::set<std::string> derived_;  ///< keys that keep their default because of a null in the file
};

}  // namespace

void add_hf_config(const std::string& path, const Place& from, RawValues& given, Diagnostics& diagnostics) {
  std::string text;
  if (const std::string wrong = read_small_file(path, text); !wrong.empty())
    return diagnostics.add(
        from, fmt::format("model.from = {}: {}{}", printable(path), wrong, download_first(path)));
  std::string wrong;
  const json root = data::parse_strict(text, kMaxConfigDepth, wrong);
  if (!wrong.empty()) return diagnostics.add({path, 0, 0}, wrong);
  if (!root.is_object())
    return diagnostics.add(from, fmt::format("model.from = {}: not a JSON object", printable(path)));
  ConfigReader(path, given, diagnostics).read(root);
}

}  // namespace ltrain::recipe
