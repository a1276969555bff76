// Recipes that must be refused, with the exact text. To see what the texts would be now, run with
// LTRAIN_WRITE_GOLDEN=1: the files are rewritten in place, and the difference is for a person to judge.
#include <catch2/catch.hpp>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/core/error.h"
#include "kernels/core/time_scale.h"
#include "runtime/recipe/recipe.h"

using namespace ltrain;

namespace {

struct BadRecipe {
  std::string name, head, text, expected;  ///< head: the lines that begin with "$ " or "@ "
  std::vector<std::string> overrides;
  int ranks = 0;
};

std::vector<BadRecipe> read_table(const std::filesystem::path& path) {
  std::vector<BadRecipe> table;
  std::ifstream in(path);
  std::string line;
  bool after = false;
  while (std::getline(in, line)) {
    if (line.rfind("=== ", 0) == 0) {
      table.emplace_back().name = line.substr(4);
      after = false;
    } else if (line == "---") {
      after = true;
    } else if (after) {
      table.back().expected += (table.back().expected.empty() ? "" : "\n") + line;
    } else if (line.rfind("$ ", 0) == 0) {
      table.back().head += line + "\n";
      table.back().overrides.push_back(line.substr(2));
    } else if (line.rfind("@ ranks ", 0) == 0) {
      table.back().head += line + "\n";
      table.back().ranks = std::stoi(line.substr(8));
    } else {
      table.back().text += line + "\n";
    }
  }
  return table;
}

/// A document mark is written with one more dash in the tables, whose own mark is "---".
std::string with_document_marks(std::string text) {
  const std::string mark = "---- ";
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at))
    text.replace(at, mark.size(), "---");
  return text;
}

std::string refusal(const BadRecipe& bad) {
  try {
    const Recipe r = parse_recipe(with_document_marks(bad.text), "r.yaml", bad.overrides);
    if (bad.ranks > 0) validate(r, bad.ranks);
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::usage);
    return e.what();
  }
  return "(accepted)";
}

}  // namespace

TEST_CASE("bad recipes are refused with their exact text", "[recipe]") {
  const std::filesystem::path folder =
      std::filesystem::path(LTRAIN_SOURCE_DIR) / "tests/runtime/recipe/bad_recipes";
  const bool rewrite = std::getenv("LTRAIN_WRITE_GOLDEN") != nullptr;
  int cases = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
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
