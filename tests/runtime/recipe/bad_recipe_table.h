// The tables of recipes that must be refused: tests/runtime/recipe/bad_recipes/*.txt.
#pragma once
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/recipe/recipe.h"

namespace ltrain::test {

struct BadRecipe {
  std::string name, head, text, expected;  ///< head: the lines that begin with "$ " or "@ "
  std::vector<std::string> overrides;
  int ranks = 0;
};

inline std::vector<BadRecipe> read_table(const std::filesystem::path& path) {
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
inline std::string with_document_marks(std::string text) {
  const std::string mark = "---- ";
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at))
    text.replace(at, mark.size(), "---");
  return text;
}

inline std::string refusal(const BadRecipe& bad) {
  try {
    const Recipe r = parse_recipe(with_document_marks(bad.text), "r.yaml", bad.overrides);
    if (bad.ranks > 0) validate(r, bad.ranks);
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::usage);
    return e.what();
  }
  return "(accepted)";
}

inline std::filesystem::path bad_recipes_folder() {
  return std::filesystem::path(LTRAIN_SOURCE_DIR) / "tests/runtime/recipe/bad_recipes";
}
inline std::vector<BadRecipe> all_bad_recipes() {
  std::vector<BadRecipe> all;
  for (const auto& file : std::filesystem::directory_iterator(bad_recipes_folder()))
    for (BadRecipe& bad : read_table(file.path())) all.push_back(std::move(bad));
  return all;
}

}  // namespace ltrain::test
