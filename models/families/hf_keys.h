// The keys of a Hugging Face config.json, by architecture: what ltrain makes of each. A key that is in no row
// may change the function that the model computes, and is refused.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ltrain::recipe {

enum class HfUse : uint8_t {
  obeyed,    ///< sets a key of the recipe
  required,  ///< changes the function: only the values that ltrain computes are taken
  special,   ///< depends on other keys: read by name in hf_config.cpp
  harmless   ///< does not change the function that is trained
};

struct HfKey {
  std::string name;
  HfUse use = HfUse::harmless;
  std::string path;           ///< obeyed: the key of the recipe
  nlohmann::json missing;     ///< default of transformers' class; obeyed, null: the recipe derives it
  bool alias = false;         ///< obeyed: another spelling, whose default stands under the first
  bool null_derives = false;  ///< obeyed: null has a meaning, that the recipe derives it
  std::vector<nlohmann::json> accepted;  ///< required: the first is the one to name
  std::string reason;                    ///< why it is harmless, or what it changes
};

/// Architectures that a config.json may name: values of model.architecture.
const std::vector<std::string>& hf_architectures();
/// The rows of one of them; keys of rope_parameters and rope_scaling are named "rope_parameters.rope_theta".
const std::vector<HfKey>& hf_keys(const std::string& architecture);
const HfKey* find_hf_key(const std::string& architecture, const std::string& name);

}  // namespace ltrain::recipe
