// Every three settings together: a covering array of strength 3 over what a layout and a model can be, up to
// eight ranks, as far as the recipe's own rules accept it. Each row trains in fp64 and must equal one
// process.
#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>

#include "tests/parity/covering_layouts.h"
#include "tests/parity/parity.h"
#include "tests/parity/recipe_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Three factors, and their levels.
using Triple = std::array<int, 6>;

void add_triples(const Row& row, std::set<Triple>& triples) {
  const int n = static_cast<int>(row.size());
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b)
      for (int c = b + 1; c < n; ++c) triples.insert({a, b, c, row[a], row[b], row[c]});
}

/// All that can be, by every accepted row: what is bound with every level of what is free.
std::set<Triple> feasible_triples() {
  std::set<Triple> all;
  std::vector<Row> free{{}};
  for (size_t f = kBound; f < factors().size(); ++f) {
    std::vector<Row> longer;
    for (const Row& row : free)
      for (int l = 0; l < static_cast<int>(factors()[f].levels.size()); ++l) {
        longer.push_back(row);
        longer.back().push_back(l);
      }
    free = std::move(longer);
  }
  for (const Row& head : allowed())
    for (const Row& tail : free) {
      Row row = head;
      row.insert(row.end(), tail.begin(), tail.end());
      add_triples(row, all);
    }
  return all;
}

}  // namespace

TEST_CASE("covering array: every three settings that the rules accept together are in some row",
          "[covering]") {
  const std::set<Triple> feasible = feasible_triples();
  const auto missing = [&](size_t rows) {
    std::set<Triple> covered;
    for (size_t i = 0; i < rows; ++i) add_triples(array()[i], covered);
    size_t n = 0;
    for (const Triple& t : feasible)
      if (!covered.count(t)) {
        if (rows == array().size())
          UNSCOPED_INFO(factors()[t[0]].name << " " << factors()[t[0]].levels[t[3]] << ", "
                                             << factors()[t[1]].name << " " << factors()[t[1]].levels[t[4]]
                                             << ", " << factors()[t[2]].name << " "
                                             << factors()[t[2]].levels[t[5]]);
        ++n;
      }
    for (const Triple& t : covered) CHECK(feasible.count(t) == 1);
    return n;
  };
  size_t all = 1, every = 0;
  for (const Factor& f : factors()) all *= f.levels.size(), every += f.levels.size();
  std::printf(
      "covering array: %zu factors of %zu levels, %zu combinations, %zu layouts accepted by the rules on up "
      "to %d ranks; %zu triples that can be, %zu rows\n",
      factors().size(), every, all, allowed().size(), kMostRanks, feasible.size(), array().size());
  CHECK(missing(array().size()) == 0);
  CHECK(missing(array().size() - 1) > 0);  // negative control
  // Every level takes part.
  for (size_t f = 0; f < factors().size(); ++f)
    for (size_t l = 0; l < factors()[f].levels.size(); ++l) {
      INFO(factors()[f].name << " " << factors()[f].levels[l]);
      CHECK(std::any_of(array().begin(), array().end(),
                        [&](const Row& row) { return row[f] == static_cast<int>(l); }));
    }
}

TEST_CASE("covering array: every row equals one process in fp64", "[covering]") {
  std::map<std::string, TinyResult> alone;
  for (const Row& row : array()) {
    INFO(text(row));
    const Recipe r = recipe_of(row);
    TinyOptions many = job_of(r, "fp64");
    many.vocab = r.model.vocab_size;
    many.padded_targets = true;
    TinyOptions one = one_rank(many);
    one.micro_batch = one.global_batch;
    const std::string key = fmt::format("{} {} {} {} {}", at(row, At::model), at(row, At::tied),
                                        at(row, At::dropout), at(row, At::vocab), at(row, At::packing));
    if (!alone.count(key)) alone[key] = train_tiny(one);
    const TinyResult result = train_tiny(many);
    require_parity(alone[key], result, 1e-12);
    CHECK(result.plan_bytes == result.used_bytes);
    if (many.expert == 1) CHECK(result.plan_wire == result.used_wire);  // else it depends on where tokens go
  }
}
