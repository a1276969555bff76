// The recipes of this repository, for tests of each of them.
#pragma once
#include <algorithm>
#include <filesystem>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

namespace ltrain::test {

/// A file of recipes/models, MODEL_GPUSxCARD_PRECISION[_VARIANT].yaml.
struct ModelRecipe {
  std::string path, name, model, card, precision, variant;
  int gpus = 0;
};

inline std::vector<std::string> recipes_in(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(LTRAIN_SOURCE_DIR) + "/" + folder))
    if (entry.path().extension() == ".yaml") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

inline std::vector<std::string> all_recipes() {
  std::vector<std::string> paths = recipes_in("recipes");
  for (const std::string& path : recipes_in("recipes/models")) paths.push_back(path);
  return paths;
}

/// Throws for a file whose name has another form.
inline std::vector<ModelRecipe> model_recipes() {
  static const std::regex form("([a-z0-9.-]+)_([0-9]+)x([a-z0-9-]+)_([a-z0-9]+)(?:_([a-z0-9]+))?");
  std::vector<ModelRecipe> all;
  for (const std::string& path : recipes_in("recipes/models")) {
    const std::string name = std::filesystem::path(path).stem().string();
    std::smatch m;
    if (!std::regex_match(name, m, form)) throw std::runtime_error(path + ": not MODEL_GPUSxCARD_PRECISION");
    all.push_back({path, name, m[1], m[3], m[4], m[5], std::stoi(m[2])});
  }
  return all;
}

inline ModelRecipe model_recipe(const std::string& name) {
  for (const ModelRecipe& m : model_recipes())
    if (m.name == name) return m;
  throw std::runtime_error("recipes/models has no " + name);
}

}  // namespace ltrain::test
