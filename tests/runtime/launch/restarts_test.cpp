#include "runtime/launch/restarts.h"

#include <catch2/catch.hpp>

using namespace ltrain;
using Catch::Contains;

namespace {

AttemptEnd lost(int64_t first_step, bool saved, const std::string& how = "a rank was killed by signal 9") {
  AttemptEnd e;
  e.code = ExitCode::rank_lost;
  e.how = how;
  e.first_step = first_step, e.saved = saved;
  return e;
}

}  // namespace

TEST_CASE("restarts: a lost rank is restarted as often as the recipe allows, other ends never") {
  RestartPolicy policy({2, 5, 300});
  CHECK(policy.next(lost(0, true)).restart);
  CHECK(policy.any_left());
  const RestartDecision second = policy.next(lost(4, true));
  CHECK((second.restart && second.number == 2));
  CHECK_FALSE(policy.any_left());
  const RestartDecision third = policy.next(lost(8, true));
  CHECK((!third.restart && third.code == ExitCode::rank_lost));
  CHECK_THAT(third.why_not, Contains("launch.max_restarts = 2 are made"));
  for (const ExitCode code :
       {ExitCode::done, ExitCode::usage, ExitCode::data, ExitCode::internal, ExitCode::storage,
        ExitCode::preempted, ExitCode::no_progress, ExitCode::does_not_fit}) {
    AttemptEnd e = lost(0, true);
    e.code = code;
    const RestartDecision d = RestartPolicy({9, 5, 300}).next(e);
    CHECK((!d.restart && d.code == code && d.why_not.empty()));
  }
}

TEST_CASE("restarts: a signal of the user during an attempt ends the job although a rank was lost") {
  AttemptEnd e = lost(0, true);
  e.asked_to_stop = true;
  CHECK_FALSE(RestartPolicy({9, 5, 300}).next(e).restart);
}

TEST_CASE(
    "restarts: the wait doubles while nothing is saved, up to the longest, and begins again after a save") {
  RestartPolicy policy({99, 5, 30});
  std::vector<double> waits;
  for (int i = 0; i < 5; ++i)
    waits.push_back(policy.next(lost(0, false, "way " + std::to_string(i))).wait_seconds);
  CHECK(waits == std::vector<double>{5, 10, 20, 30, 30});
  CHECK(policy.next(lost(0, true)).wait_seconds == 5);
  CHECK(policy.next(lost(4, false)).wait_seconds == 10);
  CHECK(RestartPolicy({1, 0, 0}).next(lost(0, false)).wait_seconds == 0);
}

TEST_CASE("restarts: two restarts from one step that end the same way end the job with 76") {
  RestartPolicy policy({99, 0, 0});
  CHECK(policy.next(lost(0, true)).restart);
  CHECK(policy.next(lost(4, false)).restart);
  const RestartDecision d = policy.next(lost(4, false));
  CHECK((!d.restart && d.code == ExitCode::no_progress));
  CHECK_THAT(d.why_not, Contains("two restarts in a row from step 4") && Contains("signal 9"));
}

TEST_CASE("restarts: another way, another step or a save between is progress") {
  const auto third = [](const AttemptEnd& second, const AttemptEnd& last) {
    RestartPolicy policy({99, 0, 0});
    policy.next(lost(0, true));
    policy.next(second);
    return policy.next(last).restart;
  };
  CHECK(third(lost(4, false), lost(4, false, "a rank hangs")));
  CHECK(third(lost(4, true), lost(8, false)));
  CHECK(third(lost(4, false), lost(4, true)));
  CHECK_FALSE(third(lost(4, false), lost(4, false)));
}

TEST_CASE("restarts: the note for the ranks is read back, and only from a launcher") {
  const RestartNote note{2, 5, "rank 1 \"died\" \xff", 40, 1.5};
  const std::string text = write_restart_note(note);
  const auto read = read_restart_note({{"LTRAIN_LAUNCHER", "1"}, {kRestartVariable, text}});
  REQUIRE(read);
  CHECK((read->number == 2 && read->most == 5 && read->end_step == 40 && read->earlier_seconds == 1.5));
  CHECK_THAT(read->reason, Contains("rank 1 \"died\""));
  CHECK_FALSE(read_restart_note({{kRestartVariable, text}}));
  CHECK_FALSE(read_restart_note({{"LTRAIN_LAUNCHER", "1"}}));
  for (const char* bad : {"", "{", "[]", "{\"number\": \"one\"}"})
    CHECK_THROWS_AS(read_restart_note({{"LTRAIN_LAUNCHER", "1"}, {kRestartVariable, bad}}), Error);
}
