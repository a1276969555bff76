// The covering array of layouts and models: every three settings together, up to eight ranks, as far as the
// recipe's own rules accept them.
#pragma once
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"
#include "tests/parity/covering/covering_array.h"

namespace ltrain::test {

constexpr int kMostRanks = 8;

/// Factors before `tied` are related by rules; the others are free.
enum class At {
  data,
  tensor,
  schedule,
  context,
  zero,
  levels,
  micros,
  model,
  tied,
  dropout,
  vocab,
  packing,
  dispatch
};
constexpr size_t kBound = static_cast<size_t>(At::tied);

const std::vector<Factor>& factors();
int at(const Row& row, At factor);
int world(const Row& row);

/// The recipe that all rows have, and what a row, or its bound part, sets on top of it.
extern const char* const kBase;
std::vector<std::string> settings(const Row& row);
/// Resolved. Throws what the rules say.
Recipe recipe_of(const Row& row);

/// All rows of the bound factors that the rules accept.
const std::vector<Row>& allowed();
/// The covering array, as tests/parity/covering/covering_rows.txt has it: a line of levels' numbers for each
/// row. Making it asks the rules about 80,000 recipes, which one test does.
const std::vector<Row>& array();
extern const char* const kArrayFile;

/// "data 2, tensor 1, ...".
std::string text(const Row& row);

}  // namespace ltrain::test
