#include "planner/exports/unsaid.h"

#include <fmt/format.h>

#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain::exports {
namespace {

/// Returns whether the key concerns files, machines, logs or saves, which no export covers.
bool about_the_run_alone(const recipe::Key& key) {
  const std::string top = key.path.substr(0, key.path.find('.'));
  if (top == "data")
    return key.path.rfind("data.train", 0) == 0 || key.path.rfind("data.eval", 0) == 0 ||
           key.path.rfind("data.tokenizer", 0) == 0;
  for (const char* section :
       {"name", "output_dir", "device", "cluster", "checkpoint", "launch", "log", "profile", "debug",
        "attention_backend", "cuda_graphs", "deterministic", "seed"})
    if (top == section) return true;
  return key.path.rfind("train.eval_", 0) == 0 || key.path == "train.log_interval" ||
         key.path == "parallel.data" || key.path == "parallel.overlap_micro_batches" ||
         key.path == "train.train_tokens" || key.path == "model.from_ignore";
}

/// A recipe of the same family with all defaults.
Recipe with_defaults(const Recipe& recipe) {
  std::vector<std::string> overrides{fmt::format("model.architecture={}", recipe.model.family->name),
                                     fmt::format("model.vocab_size={}", recipe.model.vocab_size)};
  return parse_recipe("", "defaults", overrides);
}

}  // namespace

std::string value_of(const Recipe& recipe, const std::string& path) {
  const recipe::Key* key = recipe::find_key(path);
  if (!key || !key->in_dump(recipe)) return "";
  const std::string value = key->write(*key, recipe, false);
  return value == "null" ? "" : value;
}

std::string plain_value(const Recipe& recipe, const std::string& path) {
  std::string value = value_of(recipe, path);
  if (value.size() > 2 && value.compare(value.size() - 2, 2, ".0") == 0) value.resize(value.size() - 2);
  return value;
}

std::vector<std::string> unsaid_settings(const Recipe& recipe, const std::set<std::string>& said) {
  const Recipe usual = with_defaults(recipe);
  std::vector<std::string> out;
  for (const recipe::Key& key : recipe::schema()) {
    if (said.count(key.path) || about_the_run_alone(key) || !key.in_dump(recipe)) continue;
    if (!key.implied.empty() && !(recipe.origins && recipe.origins->has(key.path))) continue;
    const std::string value = key.write(key, recipe, false);
    if (value != key.write(key, usual, false)) out.push_back(fmt::format("{} = {}", key.path, value));
  }
  return out;
}

}  // namespace ltrain::exports
