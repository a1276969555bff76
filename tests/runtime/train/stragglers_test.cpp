#include "runtime/train/stragglers.h"

#include <catch2/catch.hpp>

using namespace ltrain;

namespace {

/// A rank that computes for `ms` a step.
RankTimes busy(int64_t ms, int64_t data_ms = 0) { return {1000 * ms, 1000 * data_ms, 1000 * (ms - data_ms)}; }

}  // namespace

TEST_CASE("stragglers: a rank far above the median is named with its reason, and no other one") {
  const auto found = find_stragglers({busy(10), busy(11), busy(50), busy(10)});
  REQUIRE(found.size() == 1);
  CHECK(found[0].rank == 2);
  CHECK(found[0].reason == "compute");
  CHECK(found[0].own_ms == Approx(50));
  CHECK(found[0].median_ms == Approx(10));

  const auto by_data = find_stragglers({busy(10), busy(45, 35), busy(10)});
  REQUIRE(by_data.size() == 1);
  CHECK(by_data[0].rank == 1);
  CHECK(by_data[0].reason == "data");
  CHECK(by_data[0].reason_ms == Approx(35));

  // 50 ms of wall time, 10 ms of which the process ran.
  const auto stopped = find_stragglers({busy(10), {50000, 0, 10000}});
  REQUIRE(stopped.size() == 1);
  CHECK(stopped[0].rank == 1);
  CHECK(stopped[0].reason == "stalled");
  CHECK(stopped[0].reason_ms == Approx(40));

  // On a GPU the processor's time says nothing.
  CHECK(find_stragglers({{10000, 0, -1}, {50000, 0, -1}}).at(0).reason == "compute");
}

TEST_CASE("stragglers: two slow ranks come slowest first") {
  const auto found = find_stragglers({busy(30), busy(10), busy(40), busy(10), busy(10)});
  REQUIRE(found.size() == 2);
  CHECK(found[0].rank == 2);
  CHECK(found[1].rank == 0);
}

TEST_CASE("stragglers: no rank is named where all are alike, where noise is short, or where there is one") {
  CHECK(find_stragglers({}).empty());
  CHECK(find_stragglers({busy(50)}).empty());
  CHECK(find_stragglers({busy(10), busy(14), busy(9), busy(10)}).empty());
  CHECK(find_stragglers({{100, 0, 100}, {1500, 0, 1500}}).empty());
  CHECK(find_stragglers({{0, 0, 0}, {0, 0, 0}}).empty());
}
