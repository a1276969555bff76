#include "models/layers/lora.h"

#include <algorithm>
#include <cmath>

#include "parallel/optim/parameter_rule.h"

namespace ltrain {

std::string_view module_of(std::string_view parameter) { return parameter.substr(0, parameter.rfind('.')); }
std::string lora_a_name(std::string_view weight) { return std::string(module_of(weight)) + ".lora_A.weight"; }
std::string lora_b_name(std::string_view weight) { return std::string(module_of(weight)) + ".lora_B.weight"; }
std::string lora_magnitude_name(std::string_view weight) {
  return std::string(module_of(weight)) + ".lora_magnitude.weight";
}

bool LoraConfig::names_module(std::string_view entry, std::string_view module) {
  if (entry == kAllLinear) return true;
  if (entry.find_first_of("*?") != std::string_view::npos) return name_matches(entry, module);
  return module == entry || (module.ends_with(entry) && module.size() > entry.size() &&
                             module[module.size() - entry.size() - 1] == '.');
}

template <class T>
static T value_of(const std::vector<std::pair<std::string, T>>& pattern, std::string_view module,
                  T otherwise) {
  for (const auto& [entry, value] : pattern)
    if (LoraConfig::names_module(entry, module)) return value;
  return otherwise;
}

int64_t LoraConfig::rank_of(std::string_view weight) const {
  return value_of(rank_pattern, module_of(weight), rank);
}

double LoraConfig::alpha_of(std::string_view weight) const {
  return value_of(alpha_pattern, module_of(weight), alpha);
}

double LoraConfig::scale_of(std::string_view weight) const {
  const double r = static_cast<double>(rank_of(weight));
  return alpha_of(weight) / (use_rslora ? std::sqrt(r) : r);
}

bool LoraConfig::adapts(std::string_view weight) const {
  return on() && std::any_of(target_modules.begin(), target_modules.end(), [&](const std::string& entry) {
           return names_module(entry, module_of(weight));
         });
}

std::vector<std::string> LoraConfig::trained() const {
  std::vector<std::string> patterns;
  if (!on()) return patterns;
  patterns = {"*.lora_A.weight", "*.lora_B.weight"};
  if (dora) patterns.push_back("*.lora_magnitude.weight");
  for (const std::string& entry : modules_to_save)
    for (const char* before : {"", "*."}) patterns.push_back(before + entry + ".*");
  return patterns;
}

}  // namespace ltrain
