// Recipes of published models, through the real program: plans on their cards, and three steps in small.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <map>

#include "tests/app/run_program.h"
#include "tests/support/model_recipes.h"

using namespace ltrain::test;

namespace {

/// Tokens/s of a card that others measured with this model, card and length of sequences
/// (scripts/compare/published_measurements.json), in other layouts.
const std::map<std::string, double> kMeasuredByOthers{{"llama-3.1-8b_8xh100_bf16", 10256.0},
                                                      {"llama-3.1-8b_64xh100_bf16", 10082.5},
                                                      {"llama-3.1-70b_64xh100_bf16", 1121.4},
                                                      {"llama-3.1-405b_1024xh100_bf16", 203.6}};

std::string layout(const nlohmann::json& p) {
  std::string text;
  for (const char* axis : {"data", "tensor", "pipeline", "context", "expert"})
    if (p[axis].get<int>() > 1)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", axis, p[axis].get<int>());
  if (const int zero = p["zero_stage"].get<int>()) text += fmt::format(", ZeRO-{}", zero);
  return text.empty() ? "one rank" : text;
}

/// Two digits, and zeros: 10843 as 11000.
std::string two_digits(double n) {
  double unit = 1;
  while (n / unit >= 100) unit *= 10;
  return fmt::format("{:.0f}", std::round(n / unit) * unit);
}

/// Row of docs/recipes.md.
std::string row(const ModelRecipe& m, const nlohmann::json& recipe, const nlohmann::json& plan, double gib) {
  const double rate = plan["tokens_per_second"].get<double>() / m.gpus;
  return fmt::format("| `{}` | {} | {} | {} | {:.0f} | {} | {:.0f} % |", m.name, layout(recipe["parallel"]),
                     recipe["train"]["global_batch_size"].get<int>(), recipe["data"]["seq_length"].get<int>(),
                     gib, two_digits(rate), 100 * plan["mfu"].get<double>());
}

/// Plans the recipes that `chosen` takes on their cards.
void check_plans(const std::function<bool(const ModelRecipe&)>& chosen) {
  const TempRun t;
  const std::string page = read_file(std::string(LTRAIN_SOURCE_DIR) + "/docs/recipes.md");
  for (const ModelRecipe& m : model_recipes()) {
    if (!chosen(m)) continue;
    const Outcome o = t.shell(program() + " plan " + m.path + " --profile " + m.card + " --json 2>/dev/null");
    INFO(m.name << "\n" << o.text.substr(0, 2000));
    REQUIRE(o.code == 0);  // 78: does not fit
    const auto plan = nlohmann::json::parse(o.text);
    CHECK(plan["fits"] == true);
    CHECK(plan["world"] == m.gpus);
    double bytes = 0;
    for (const auto& rank : plan["ranks"])
      bytes = std::max(bytes, rank["memory_bytes"]["total"].get<double>());
    CHECK(bytes > 0);
    const double mfu = plan["mfu"].get<double>();
    // Experts wait for their tokens, and FLOPs of FP8 are counted against the peak of bf16.
    const auto shown =
        nlohmann::json::parse(t.shell(program() + " recipe show " + m.path + " --json 2>/dev/null").text);
    const bool experts =
        shown["model"].contains("moe") && shown["model"]["moe"]["num_experts"].get<int>() > 0;
    CHECK(mfu >= (experts ? 0.20 : 0.25));
    CHECK(mfu <= (m.precision == "fp8" ? 0.85 : 0.65));
    const double rate = plan["tokens_per_second"].get<double>() / m.gpus;
    if (const auto other = kMeasuredByOthers.find(m.name); other != kMeasuredByOthers.end()) {
      CHECK(rate >= 0.85 * other->second);
      CHECK(rate <= 1.25 * other->second);
    }
    const std::string expected = row(m, shown, plan, bytes / (1 << 30));
    INFO("docs/recipes.md has no row:\n" << expected);
    CHECK(page.find(expected + "\n") != std::string::npos);
  }
}

/// Runs the recipes that `chosen` takes in small.
void check_runs(const std::function<bool(const ModelRecipe&)>& chosen) {
  const TempRun t;
  for (const ModelRecipe& m : model_recipes()) {
    if (!chosen(m)) continue;
    const Outcome o = t.sh("run " + m.path + " --shrink output_dir=small checkpoint.save_at_end=false");
    INFO(m.name << "\n" << o.text);
    CHECK(o.code == 0);
    CHECK_THAT(o.text, Catch::Contains("done: 3 steps"));
    const std::vector<double> losses = t.values("lm_loss", "small");
    REQUIRE(losses.size() == 3);
    for (const double loss : losses) CHECK((loss > 0 && loss < 8));
    std::filesystem::remove_all(t.folder() + "/small");
  }
}

bool is_moe(const ModelRecipe& m) {
  return m.model.find("-a3b") + 1 || m.model.find("-a22b") + 1 || m.model.rfind("mixtral", 0) == 0 ||
         m.model.rfind("olmoe", 0) == 0 || m.model.rfind("gpt-oss", 0) == 0 ||
         m.model.rfind("deepseek", 0) == 0;
}

}  // namespace

TEST_CASE("recipes of dense models fit their cards at a plausible speed, as docs/recipes.md says") {
  check_plans([](const ModelRecipe& m) { return !is_moe(m); });
}

TEST_CASE("recipes of models with experts fit their cards at a plausible speed, as docs/recipes.md says") {
  check_plans(is_moe);
}

TEST_CASE("recipes of dense models train three steps in small") {
  check_runs([](const ModelRecipe& m) { return !is_moe(m) && m.variant.empty(); });
}

TEST_CASE("recipes of models with experts train three steps in small") { check_runs(is_moe); }

TEST_CASE("recipes of fine-tuning and long sequences train three steps in small") {
  check_runs([](const ModelRecipe& m) { return !m.variant.empty(); });
}

TEST_CASE("shrink prints each key that it changes, and gives way to what the command line sets") {
  const TempRun t;
  const std::string recipe = model_recipe("llama-3.1-70b_64xh100_bf16").path;
  const Outcome o = t.sh("run " + recipe + " --shrink=2 train.train_steps=2");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text, Catch::Contains("shrink: model.num_hidden_layers: 80 -> 2\n") &&
                         Catch::Contains("shrink: parallel.pipeline: 4 -> 1\n") &&
                         Catch::Contains("shrink: train.train_steps: 100000 -> 2\n") &&
                         Catch::Contains("done: 2 steps"));
  const Outcome plan = t.sh("plan " + recipe + " --shrink");
  CHECK(plan.code == 0);
  CHECK_THAT(plan.text,
             Catch::Contains("on 8 ranks (tensor 2, pipeline 2, data 2)") || Catch::Contains("on 8 ranks"));
  const Outcome joined = t.sh("run " + recipe + " --shrink",
                              "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=1");
  CHECK(joined.code == 64);
  CHECK_THAT(joined.text, Catch::Contains("starts its own ranks on one machine"));
}
