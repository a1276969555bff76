// The keys of a Hugging Face config.json: what ltrain makes of each, a table a family. A key that is in no
// row may change the function that the model computes, and is refused.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ltrain {

enum class HfUse : uint8_t {
  obeyed,    ///< sets a key of the recipe
  required,  ///< changes the function: only the values that ltrain computes are taken; `path` gets the first
  special,   ///< depends on other keys: read by name in hf_config.cpp
  harmless   ///< does not change the function that is trained
};

struct HfKey {
  std::string name;
  HfUse use = HfUse::harmless;
  std::string path;        ///< obeyed, required: the key of the recipe; harmless: the one it repeats; or none
  nlohmann::json missing;  ///< default of transformers' class; obeyed, null: the recipe derives it
  bool alias = false;      ///< obeyed: another spelling, whose default stands under the first
  bool null_derives = false;             ///< obeyed: null has a meaning, that the recipe derives it
  bool null_sets = false;                ///< obeyed: null is a value of the recipe's key
  std::vector<nlohmann::json> accepted;  ///< required: the first is the one to name
  std::string reason;                    ///< why it is harmless, or what it changes
};

/// Of Family::hf_keys; keys of rope_parameters and rope_scaling are named "rope_parameters.rope_theta". Null
/// where there is none.
const HfKey* find_hf_key(const std::vector<HfKey>& keys, const std::string& name);

// Rows, for the files of families. `path`: the key of the recipe without "model.".
HfKey hf_obeyed(std::string name, const std::string& path, nlohmann::json missing, bool null_derives = false);
/// Whose null is a value: what is numbered there is off.
HfKey hf_number_or_null(std::string name, const std::string& path, nlohmann::json missing);
/// Another spelling of a row that has the default.
HfKey hf_alias(std::string name, const std::string& path);
HfKey hf_required(std::string name, std::vector<nlohmann::json> accepted, std::string reason);
/// Trait of a family that a recipe can change: the class computes `value` whatever a config.json says.
HfKey hf_fixed(std::string name, const std::string& path, nlohmann::json value, std::string reason);
HfKey hf_special(std::string name, std::string reason, nlohmann::json missing = nullptr);
/// A key that repeats another one and is not read here, but by others: it is written.
HfKey hf_repeated(std::string name, const std::string& path, std::string reason);
void add_harmless(std::vector<HfKey>& rows, const std::string& reason, const std::vector<const char*>& names);
/// Of every family: none of these is read where the logits of a training step are computed.
void add_common(std::vector<HfKey>& rows);

}  // namespace ltrain
