// Every three settings together: a covering array of strength 3 over what a layout and a model can be, up to
// eight ranks, as far as the recipe's own rules accept it. Each row trains in fp64 and must equal one
// process.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "tests/parity/covering/covering_layouts.h"
#include "tests/parity/moe/moe_jobs.h"
#include "tests/parity/parity.h"
#include "tests/parity/recipe_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Three levels, numbered over all factors, in the order of their factors.
class Triples {
 public:
  Triples() {
    for (const Factor& f : factors())
      for (size_t l = 0; l < f.levels.size(); ++l) levels_.push_back({&f, l});
    has_.resize(levels_.size() * levels_.size() * levels_.size());
  }

  void add(const Row& row) {
    std::array<size_t, 32> at;
    for (size_t f = 0, first = 0; f < row.size(); first += factors()[f++].levels.size())
      at.at(f) = first + static_cast<size_t>(row[f]);
    for (size_t a = 0; a < row.size(); ++a)
      for (size_t b = a + 1; b < row.size(); ++b)
        for (size_t c = b + 1; c < row.size(); ++c)
          has_[(at[a] * levels_.size() + at[b]) * levels_.size() + at[c]] = true;
  }
  size_t count() const { return static_cast<size_t>(std::count(has_.begin(), has_.end(), true)); }
  /// Elements that `others` does not have.
  std::vector<std::string> missing_in(const Triples& others) const {
    std::vector<std::string> missing;
    for (size_t i = 0; i < has_.size(); ++i)
      if (has_[i] && !others.has_[i])
        missing.push_back(fmt::format("{}, {}, {}", level(i / levels_.size() / levels_.size()),
                                      level(i / levels_.size() % levels_.size()), level(i % levels_.size())));
    return missing;
  }

 private:
  std::string level(size_t at) const {
    return levels_[at].first->name + " " + levels_[at].first->levels[levels_[at].second];
  }
  std::vector<std::pair<const Factor*, size_t>> levels_;
  std::vector<char> has_;
};

/// All that can be, by every accepted row: what is bound with every level of what is free.
Triples feasible_triples() {
  Triples all;
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
  for (const Row& head : allowed()) {
    Row row = head;
    row.resize(factors().size());
    for (const Row& tail : free) {
      std::copy(tail.begin(), tail.end(), row.begin() + kBound);
      all.add(row);
    }
  }
  return all;
}

}  // namespace

TEST_CASE("covering array: every three settings that the rules accept together are in some row",
          "[covering]") {
  const std::vector<Row> made = covering_array(factors(), allowed());
  if (std::getenv("LTRAIN_WRITE_GOLDEN")) {
    std::ofstream file(kArrayFile);
    for (const Row& row : made) file << fmt::format("{}\n", fmt::join(row, " "));
  }
  INFO("a change of the rules or of the levels: LTRAIN_WRITE_GOLDEN=1 and this test write " << kArrayFile);
  const bool same = made == array();
  REQUIRE(same);
  const Triples feasible = feasible_triples();
  size_t all = 1, every = 0;
  for (const Factor& f : factors()) all *= f.levels.size(), every += f.levels.size();
  std::printf(
      "covering array: %zu factors of %zu levels, %zu combinations, %zu layouts accepted by the rules on up "
      "to %d ranks; %zu triples that can be, %zu rows\n",
      factors().size(), every, all, allowed().size(), kMostRanks, feasible.count(), array().size());
  const std::vector<std::string> none;
  Triples covered;
  for (size_t i = 0; i + 1 < array().size(); ++i) covered.add(array()[i]);
  CHECK(feasible.missing_in(covered) != none);  // negative control
  covered.add(array().back());
  CHECK(feasible.missing_in(covered) == none);
  CHECK(covered.missing_in(feasible) == none);
  // Every level takes part.
  for (size_t f = 0; f < factors().size(); ++f)
    for (size_t l = 0; l < factors()[f].levels.size(); ++l) {
      INFO(factors()[f].name << " " << factors()[f].levels[l]);
      CHECK(std::any_of(array().begin(), array().end(),
                        [&](const Row& row) { return row[f] == static_cast<int>(l); }));
    }
}

namespace {

/// Trains the rows that have experts, or all, and holds each against one process.
template <class Check>
void each_row(bool experts, const TinyHooks& hooks, const Check& check) {
  std::map<std::string, TinyResult> alone;
  for (const Row& row : array()) {
    INFO(text(row));
    const Recipe r = recipe_of(row);
    TinyOptions many = job_of(r, "fp64");
    if (experts && many.expert == 1) continue;
    many.vocab = r.model.vocab_size;
    many.padded_targets = true;
    TinyOptions one = one_rank(many);
    one.micro_batch = one.global_batch;
    const std::string key = fmt::format("{} {} {} {} {}", at(row, At::model), at(row, At::tied),
                                        at(row, At::dropout), at(row, At::vocab), at(row, At::packing));
    if (!alone.count(key)) alone[key] = train_tiny(one, {}, hooks);
    const TinyResult result = train_tiny(many, {}, hooks);
    require_parity(alone[key], result, 1e-12);
    CHECK(result.plan_bytes == result.used_bytes);
    check(many, result);
  }
}

}  // namespace

TEST_CASE("covering array: every row equals one process in fp64", "[covering]") {
  each_row(false, {}, [](const TinyOptions& many, const TinyResult& result) {
    if (many.expert == 1) CHECK(result.plan_wire == result.used_wire);  // else it depends on where tokens go
  });
}

TEST_CASE("covering array: every row with experts equals one process where all tokens go to one rank's",
          "[covering]") {
  TinyHooks hooks;
  hooks.begin = equal_scores;
  int rows = 0, beyond = 0;
  each_row(true, hooks, [&](const TinyOptions& many, const TinyResult& result) {
    ++rows;
    const ExpertStatistics& s = result.experts.at(0);
    for (const std::vector<double>& chosen : s.chosen) {
      if (chosen.empty()) continue;  // a layer without experts
      CHECK((chosen.at(0) > 0 && chosen.at(1) > 0));
      CHECK((chosen.at(2) == 0 && chosen.at(3) == 0));  // the second rank has no token
    }
    if (many.dispatch.row_budget == 0) return;
    ++beyond;
    CHECK(*std::max_element(s.beyond_rows.begin(), s.beyond_rows.end()) > 0);
  });
  CHECK(rows > 200);
  CHECK(beyond > 50);
}
