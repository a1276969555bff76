// Recipes of published models (recipes/models): their shapes, names and cards, and that --shrink takes them.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "runtime/recipe/recipe.h"
#include "runtime/recipe/shrink.h"
#include "runtime/weights/hf_folder.h"
#include "tests/support/model_recipes.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Parameters as the models' authors give them. Table 1 of arXiv:2407.21783 and its model cards, the cards of
/// Qwen3, arXiv:2401.04088, 2501.00656, 2409.02060, 2508.10925, 2405.04434, 2412.19437.
const std::map<std::string, double> kPublished{
    {"gpt2-124m", 124.4e6},    {"gpt2-1.5b", 1.558e9},      {"llama-3.2-1b", 1.236e9},
    {"llama-3.2-3b", 3.21e9},  {"llama-3.1-8b", 8.03e9},    {"llama-3.1-70b", 70.6e9},
    {"llama-3.1-405b", 406e9}, {"qwen3-0.6b", 0.596e9},     {"qwen3-8b", 8.19e9},
    {"qwen3-32b", 32.8e9},     {"qwen3-30b-a3b", 30.5e9},   {"qwen3-235b-a22b", 235e9},
    {"mixtral-8x7b", 46.7e9},  {"olmo-2-7b", 7.30e9},       {"olmoe-1b-7b", 6.92e9},
    {"smollm3-3b", 3.08e9},    {"gpt-oss-20b", 20.9e9},     {"gpt-oss-120b", 116.8e9},
    {"deepseek-v3", 671e9},    {"deepseek-v2-lite", 15.7e9}};

double parameters_of(const ModelConfig& model) {
  double n = 0;
  for (const auto& [name, shape] : parameter_shapes(model)) n += static_cast<double>(shape.elements());
  return n;
}

}  // namespace

TEST_CASE("recipes of published models have the published number of parameters within 1 %") {
  std::set<std::string> seen;
  for (const ModelRecipe& m : model_recipes()) {
    INFO(m.name);
    Recipe recipe = load_recipe(m.path);
    recipe.model.lora = {};
    recipe.model.scores_texts = false;  // the published models have an output layer
    REQUIRE(kPublished.contains(m.model));
    CHECK(parameters_of(recipe.model) == Approx(kPublished.at(m.model)).epsilon(0.01));
    seen.insert(m.model);
  }
  CHECK(seen.size() == kPublished.size());
  CHECK(model_recipes().size() >= 25);
}

TEST_CASE("negative control: a width that is one head off is not within 1 % of the published parameters") {
  const Recipe recipe =
      load_recipe(model_recipe("llama-3.1-8b_8xh100_bf16").path,
                  {"model.hidden_size=3968", "model.num_attention_heads=31", "model.num_key_value_heads=1"});
  CHECK(parameters_of(recipe.model) != Approx(8.03e9).epsilon(0.01));
}

TEST_CASE("names of recipes of published models say ranks and precision, and each begins with a comment") {
  for (const ModelRecipe& m : model_recipes()) {
    INFO(m.name);
    const Recipe r = load_recipe(m.path);
    CHECK(r.name == m.name);
    const Parallel& p = r.parallel;
    CHECK(p.data * p.tensor * p.pipeline * p.context == m.gpus);
    CHECK(std::string(to_string(r.precision)) == m.precision);
    CHECK(r.device == DeviceChoice::cuda);
    CHECK((m.variant == "sft" || m.variant == "lora") == (r.task == Task::sft));
    CHECK((m.variant == "lora") == r.model.lora.on());
    CHECK((m.variant == "dpo") == (r.task == Task::dpo));
    CHECK((m.variant == "kto") == (r.task == Task::kto));
    CHECK((m.variant == "reward") == (r.task == Task::reward));
    CHECK((m.variant == "128k") == (r.data.seq_length == 131072));
    std::ifstream in(m.path);
    std::string comment;
    for (std::string line; std::getline(in, line) && line.rfind("# ", 0) == 0;)
      comment += line.substr(2) + " ";
    CHECK(comment.find("The shape is that of the published config.json of ") != std::string::npos);
    CHECK(
        (comment.find("Planned only") != std::string::npos || comment.find("Planned.") != std::string::npos));
    CHECK(comment.find("--profile " + m.card) != std::string::npos);
  }
}

TEST_CASE("every recipe shrinks to few ranks and parameters, with its family and task") {
  for (const std::string& path : all_recipes()) {
    INFO(path);
    const Recipe large = load_recipe(path);
    for (const int64_t most : {8, 2, 1}) {
      const Recipe small = load_recipe(path, shrink_settings(large, most));
      const Parallel& p = small.parallel;
      const int64_t world = p.data * p.tensor * p.pipeline * p.context;
      CHECK(world <= most);
      validate(small, static_cast<int>(world));
      CHECK(small.model.family == large.model.family);
      CHECK(small.task == large.task);
      CHECK(small.precision == large.precision);
      CHECK(parameters_of(small.model) < 3e6);
    }
  }
}
