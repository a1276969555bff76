// Recipes that must be refused, with the exact text. To see what the texts would be now, run with
// LTRAIN_WRITE_GOLDEN=1: the files are rewritten in place, and the difference is for a person to judge.
#include <catch2/catch.hpp>

#include <chrono>
#include <cstdlib>

#include "base/time_scale.h"
#include "tests/runtime/recipe/bad_recipe_table.h"

using namespace ltrain;

using namespace ltrain::test;

TEST_CASE("bad recipes are refused with their exact text", "[recipe]") {
  const bool rewrite = std::getenv("LTRAIN_WRITE_GOLDEN") != nullptr;
  int cases = 0;
  for (const auto& file : std::filesystem::directory_iterator(bad_recipes_folder())) {
    std::string text;
    for (const BadRecipe& bad : read_table(file.path())) {
      const auto start = std::chrono::steady_clock::now();
      const std::string found = refusal(bad);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      INFO(file.path().filename().string() << ": " << bad.name);
      CHECK(seconds.count() < 0.5 * time_scale());
      CHECK(found != "(accepted)");
      if (!rewrite) CHECK(found == bad.expected);
      text += "=== " + bad.name + "\n" + bad.head + bad.text + "---\n" + found + "\n";
      ++cases;
    }
    if (rewrite) std::ofstream(file.path()) << text;
  }
  CHECK(cases >= 100);
}

TEST_CASE("a good recipe passes the same way that bad ones are refused", "[recipe]") {
  BadRecipe good;
  good.text =
      "train: {micro_batch_size: 2, global_batch_size: 8}\nmodel: {hidden_size: 64, num_attention_heads: "
      "4}\n";
  CHECK(refusal(good) == "(accepted)");
  good.ranks = 4;
  CHECK(refusal(good) == "(accepted)");
  good.ranks = 3;  // negative control: one rule broken
  CHECK(refusal(good) != "(accepted)");
}
