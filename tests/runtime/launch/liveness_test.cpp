#include "runtime/launch/liveness.h"

#include <catch2/catch.hpp>

#include "base/exit_codes.h"

using namespace ltrain;
using Catch::Contains;

namespace {

/// A job of ranks that were last heard so many bounds of silence before `now`: 1.01 is just beyond the bound.
Liveness job(const std::vector<double>& silent_for, SteadyTime now) {
  const double bound = liveness_bounds().silence;
  Liveness l(static_cast<int>(silent_for.size()), 10, "a");
  for (size_t r = 0; r < silent_for.size(); ++r) {
    KnownRank& known = l.ranks()[r];
    known.connection = static_cast<int>(r);
    known.joined = true;
    known.host = r < 2 ? "a" : "b";
    known.status = RankStatus{};
    known.last_heard = known.status_at = after(-silent_for[r] * bound, now);
  }
  return l;
}

}  // namespace

TEST_CASE("ranks of a frozen host whose heartbeats ended an interval apart are one failure") {
  const SteadyTime now = steady_now();
  Liveness l = job({0.05, 0.1, 0.93, 1.01}, now);
  l.watch(now, "");
  REQUIRE(l.any_failure());
  const Verdict v = l.verdict();
  CHECK((v.rank == 3 && v.code == ExitCode::rank_lost));
  REQUIRE(v.lines.size() == 2);
  CHECK_THAT(v.lines[0], Contains("rank 3 on host b sent no heartbeat"));
  CHECK_THAT(v.lines[1], Contains("the same on rank 2 on host b"));
}

TEST_CASE("a rank that missed a few heartbeats is not called silent with another") {
  const SteadyTime now = steady_now();
  Liveness l = job({0.05, 0.45, 1.02, 1.01}, now);
  l.watch(now, "");
  const Verdict v = l.verdict();
  CHECK(v.rank == 2);
  REQUIRE(v.lines.size() == 2);
  CHECK_THAT(v.lines[1], Contains("the same on rank 3 on host b"));
}

TEST_CASE("no rank is silent before the bound") {
  const SteadyTime now = steady_now();
  Liveness l = job({0.05, 0.99, 0.98, 0.97}, now);
  l.watch(now, "");
  CHECK(!l.any_failure());
}
