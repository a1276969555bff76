// Keys of a Hugging Face config.json and their use in ltrain, one table for each family. A key without a row
// may change the model's function, and is an error.
#pragma once
#include <string>
#include <vector>

#include "base/json/json.h"

namespace ltrain {

enum class HfUse : uint8_t {
  obeyed,    ///< sets a key of the recipe
  required,  ///< changes the function: only values that ltrain computes are accepted; `path` gets the first
  special,   ///< depends on other keys: read by name in hf_config.cpp
  harmless   ///< does not change the trained function
};

struct HfKey {
  std::string name;
  HfUse use = HfUse::harmless;
  std::string path;  ///< obeyed, required: key of the recipe; harmless: the key that it repeats, or empty
  nlohmann::json missing;     ///< default of transformers' class; obeyed and null: the recipe derives it
  bool alias = false;         ///< obeyed: another spelling; the first one has the default
  bool null_derives = false;  ///< obeyed: null means that the recipe derives it
  bool null_sets = false;     ///< obeyed: null is a value of the recipe's key
  /// obeyed: other words of transformers for values of the recipe's key
  std::vector<std::pair<std::string, std::string>> words;
  std::vector<nlohmann::json> accepted;  ///< required: the first one appears in messages
  std::string reason;                    ///< why it is harmless, or its effect
};

/// Row of Family::hf_keys; keys of rope_parameters and rope_scaling are named "rope_parameters.rope_theta".
/// Null if there is none.
const HfKey* find_hf_key(const std::vector<HfKey>& keys, const std::string& name);

/// Value of the recipe's key for a value of an obeyed row, and the value to write for the recipe's: the
/// class's default if it means the same.
nlohmann::json in_recipe(const HfKey& key, const nlohmann::json& value);
nlohmann::json in_config(const HfKey& key, const nlohmann::json& value);

// Rows for the files of families. `path`: key of the recipe without "model.".
HfKey hf_obeyed(std::string name, const std::string& path, nlohmann::json missing, bool null_derives = false);
/// A number or null; null turns the feature off.
HfKey hf_number_or_null(std::string name, const std::string& path, nlohmann::json missing);
/// Another spelling of a row that has the default.
HfKey hf_alias(std::string name, const std::string& path);
HfKey hf_required(std::string name, std::vector<nlohmann::json> accepted, std::string reason);
/// A family trait that a recipe can change: the class computes `value` for any config.json.
HfKey hf_fixed(std::string name, const std::string& path, nlohmann::json value, std::string reason);
/// The feed-forward's activation function; ModelConfig::hidden_act.
HfKey hf_activation(std::string name, nlohmann::json missing);
HfKey hf_special(std::string name, std::string reason, nlohmann::json missing = nullptr);
/// A key that repeats another one. It is not read here, but written for other readers.
HfKey hf_repeated(std::string name, const std::string& path, std::string reason);
void add_harmless(std::vector<HfKey>& rows, const std::string& reason, const std::vector<const char*>& names);
/// Adds rows of every family: none of these keys affects the logits of a training step.
void add_common(std::vector<HfKey>& rows);

}  // namespace ltrain
