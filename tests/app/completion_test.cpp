// Completion of shells and man pages: generated from the commands, so they have all of them.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Candidates of bash for the last word of a line.
std::string complete(const TempRun& t, const std::string& words) {
  std::ofstream(t.folder() + "/complete.sh") << "source <(" + program() + " completion bash)\n"
                                             << "COMP_WORDS=(" + words + ")\n"
                                             << "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_ltrain\n"
                                             << "printf '<%s>' \"${COMPREPLY[@]}\"\n";
  const Outcome o = t.shell("bash complete.sh");
  INFO(o.text);
  CHECK(o.code == 0);
  return o.text;
}

}  // namespace

TEST_CASE("completion of bash: commands, options, values of options, keys of recipes, and files") {
  TempRun t;
  CHECK_THAT(complete(t, "ltrain ''"),
             Contains("<run>") && Contains("<checkpoint>") && !Contains("<selftest>"));
  CHECK(complete(t, "ltrain re") == "<recipe><report><replay>");
  CHECK(complete(t, "ltrain checkpoint l") == "<list>");
  CHECK(complete(t, "ltrain run --ste") == "<--steps>");
  CHECK_THAT(complete(t, "ltrain data build --input-format ''"), Contains("<json>") && Contains("<text>"));
  CHECK(complete(t, "ltrain run tiny.y") == "<tiny.yaml>");
  CHECK(complete(t, "ltrain run tiny.yaml launch.max") == "<launch.max_restarts=>");
  CHECK(complete(t, "ltrain completion z") == "<zsh>");
}

TEST_CASE("completion of every shell has each command, and another shell is refused") {
  TempRun t;
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Outcome o = t.sh(std::string("completion ") + shell);
    CHECK(o.code == 0);
    CHECK_THAT(o.text, Contains("data build") && Contains("optimizer.lr"));
    CHECK_THAT(o.text, Contains(std::string(shell) == "fish" ? "-l steps" : "--steps"));
  }
  CHECK(t.sh("completion tcsh").code == 64);
}

TEST_CASE("man pages: one for each command, with its options") {
  TempRun t;
  REQUIRE(t.sh("man --folder man1").code == 0);
  const std::string run = read_file(t.folder() + "/man1/ltrain-run.1");
  CHECK_THAT(run, Contains(".TH ltrain\\-run 1") && Contains("\\-\\-steps") && Contains(".SH SETTINGS") &&
                      Contains("a rank died or hung"));
  CHECK_THAT(read_file(t.folder() + "/man1/ltrain.1"), Contains(".BR ltrain\\-data (1)"));
  for (const char* page : {"ltrain-data-build", "ltrain-checkpoint-list", "ltrain-completion"})
    CHECK(std::filesystem::exists(t.folder() + "/man1/" + page + ".1"));
  CHECK(!std::filesystem::exists(t.folder() + "/man1/ltrain-selftest.1"));
  CHECK_THAT(t.sh("man").text, Contains(".TH ltrain 1"));
}
