#include "base/exit_codes.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

using namespace ltrain;

TEST_CASE("exit codes: one row each, in ascending order, and the page on launching has the table") {
  int before = -1;
  for (const ExitCodeRow& row : exit_code_table()) {
    CHECK(static_cast<int>(row.code) > before);
    before = static_cast<int>(row.code);
    CHECK(find_exit_code(before) == &row);
    CHECK(!row.text.empty());
  }
  // Every name of the enumeration.
  for (const ExitCode code :
       {ExitCode::done, ExitCode::usage, ExitCode::data, ExitCode::internal, ExitCode::rank_lost,
        ExitCode::storage, ExitCode::preempted, ExitCode::no_progress, ExitCode::does_not_fit})
    CHECK(find_exit_code(static_cast<int>(code)));
  CHECK(exit_code_table().size() == 9);
  CHECK(!find_exit_code(1));
  CHECK(exit_code_text(71) == "exit code 71 (a rank died or hung: start again)");
  CHECK(exit_code_text(5) == "exit code 5");
  std::ifstream page(LTRAIN_SOURCE_DIR "/docs/launch.md");
  std::stringstream text;
  text << page.rdbuf();
  INFO(exit_code_markdown());
  CHECK(text.str().find(exit_code_markdown()) != std::string::npos);
}

TEST_CASE(
    "exit codes: the launcher restarts after a lost rank alone, a script also after a request to stop") {
  for (int code = 0; code < 256; ++code) {
    CHECK(launcher_restarts(code) == (code == 71));
    CHECK(script_restarts(code) == (code == 71 || code == 75));
  }
}
