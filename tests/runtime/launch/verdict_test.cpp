#include "runtime/launch/verdict.h"

#include <catch2/catch.hpp>

#include "base/exit_codes.h"

using namespace ltrain;
using Catch::Contains;
using FailureKind = Failure::Kind;

namespace {
Verdict verdict(const std::vector<Failure>& failures) {
  return make_verdict(
      failures, [](int r) { return r < 2 ? std::string("a") : std::string("b"); },
      [](int r) { return "in section step " + std::to_string(r); });
}
}  // namespace

TEST_CASE("a lost connection that is heard of first is still only a consequence") {
  const Verdict v =
      verdict({{FailureKind::error, 0, ExitCode::rank_lost, "lost rank 3", 1},
               {FailureKind::error, 2, ExitCode::rank_lost, "lost rank 0", 2},
               {FailureKind::dead, 3, ExitCode::rank_lost, "was killed by signal 9 (SIGKILL)", 3}});
  CHECK((v.failed && v.rank == 3 && v.code == ExitCode::rank_lost));
  REQUIRE(v.lines.size() == 2);
  CHECK(v.lines[0] == "rank 3 on host b was killed by signal 9 (SIGKILL), in section step 3");
  CHECK_THAT(v.lines[1], Contains("consequence on ranks 0, 2: lost rank 3"));
}

TEST_CASE("a plan that does not fit is a code of its own, which asks not to start again") {
  CHECK(exit_code_text(78) == "exit code 78 (needs more memory than there is: do not start again)");
  const Verdict v = verdict({{FailureKind::dead, 1, ExitCode::does_not_fit, "ended with 78", 1},
                             {FailureKind::error, 0, ExitCode::rank_lost, "lost rank 1", 2}});
  CHECK((v.rank == 1 && v.code == ExitCode::does_not_fit));
}

TEST_CASE("the first of several causes gives the exit code, equal ones are folded, others listed") {
  const Verdict v = verdict({{FailureKind::error, 2, ExitCode::data, "shard 7 is broken", 1},
                             {FailureKind::error, 0, ExitCode::data, "shard 7 is broken", 2},
                             {FailureKind::error, 1, ExitCode::storage, "disk full", 3}});
  CHECK((v.rank == 2 && v.code == ExitCode::data));
  CHECK(v.lines[0] == "rank 2 on host b failed, in section step 2: shard 7 is broken");
  CHECK_THAT(v.lines[1], Contains("the same on rank 0 on host a"));
  CHECK_THAT(v.lines[2], Contains("then rank 1 on host a: disk full"));
}

TEST_CASE("an error that was read before is referred to, not said again") {
  const Verdict v =
      verdict({{FailureKind::error, 1, ExitCode::no_progress, "loss nan.\nLower the rate.", 1},
               {FailureKind::error, 0, ExitCode::no_progress, "loss nan.\nLower the rate.", 2}});
  CHECK(v.lines_after(false) == v.lines);
  CHECK(v.lines[0] == "rank 1 on host a failed, in section step 1: loss nan.\nLower the rate.");
  CHECK(v.lines_after(true)[0] == "rank 1 on host a failed, in section step 1: its error is above");
  CHECK_THAT(v.lines_after(true)[1], Contains("the same on rank 0 on host a"));
  const Verdict killed =
      verdict({{FailureKind::dead, 3, ExitCode::rank_lost, "was killed by signal 9 (SIGKILL)", 3}});
  CHECK(killed.lines_after(true) == killed.lines);
}

TEST_CASE("a frozen host is one line, not one for each of its ranks") {
  const Verdict v = verdict({{FailureKind::silent, 2, ExitCode::rank_lost, "sent no heartbeat for 8 s", 1},
                             {FailureKind::silent, 3, ExitCode::rank_lost, "sent no heartbeat for 8 s", 1}});
  REQUIRE(v.lines.size() == 2);
  CHECK_THAT(v.lines[1], Contains("the same on rank 3 on host b"));
}

TEST_CASE("only lost connections: the first of them is what there is") {
  const Verdict v = verdict({{FailureKind::error, 1, ExitCode::rank_lost, "waited 600 s", 1}});
  CHECK((v.rank == 1 && v.code == ExitCode::rank_lost && v.lines.size() == 1));
}
