#include "models/moe/row_slices.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>
#include <tuple>

using namespace ltrain;

namespace {

/// The rows of a rank's experts in the order that they are sorted in: by expert, then by the rank they are
/// of.
std::vector<std::pair<int64_t, int64_t>> rows_of(const std::vector<int64_t>& all, int64_t ranks, int64_t to) {
  const int64_t experts = static_cast<int64_t>(all.size()) / ranks, local = experts / ranks;
  std::vector<std::pair<int64_t, int64_t>> rows;
  for (int64_t e = to * local; e < (to + 1) * local; ++e)
    for (int64_t from = 0; from < ranks; ++from)
      rows.insert(rows.end(), static_cast<size_t>(all[from * experts + e]), {e, from});
  return rows;
}

}  // namespace

TEST_CASE("slices of rows: together all rows in their order, none above its bound, as few as can be") {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const int64_t ranks = 1 + random() % 5, local = 1 + random() % 3, most = 1 + random() % 40;
    std::vector<int64_t> all(static_cast<size_t>(ranks * ranks * local));
    for (int64_t& n : all) n = random() % 3 == 0 ? random() % 30 : 0;
    const auto slices = cut_rows(all, ranks, most);
    int64_t busiest = 0;
    for (int64_t to = 0; to < ranks; ++to) {
      const auto rows = rows_of(all, ranks, to);
      std::vector<std::pair<int64_t, int64_t>> again;
      for (const auto& slice : slices) {
        const auto some = rows_of(slice, ranks, to);
        REQUIRE(static_cast<int64_t>(some.size()) <= most);
        again.insert(again.end(), some.begin(), some.end());
      }
      REQUIRE(again == rows);
      busiest = std::max(busiest, static_cast<int64_t>(rows.size()));
    }
    REQUIRE(static_cast<int64_t>(slices.size()) == std::max<int64_t>(1, (busiest + most - 1) / most));
  }
}
