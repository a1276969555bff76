// ltrain report of several runs.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

TEST_CASE("ltrain report compares runs, and writes a page, a drawing and a table") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml output_dir=a").code == 0);
  REQUIRE(t.sh("run tiny.yaml output_dir=b optimizer.lr=5e-3 train.train_steps=4").code == 0);
  const Outcome o = t.sh("report a b --html runs.html --svg runs.svg --csv runs.csv");
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.text, Contains("\na  ") && Contains("\nb  ") && Contains("loss at the same steps"));
  const std::string csv = read_text(t.folder() + "/runs.csv");
  CHECK_THAT(csv, Catch::StartsWith("run,first_step,last_step,loss,") && Contains("\na,6,6,") &&
                      Contains("\nb,4,4,") && !Contains("\nb,5,5,"));
  CHECK_THAT(read_text(t.folder() + "/runs.svg"), Contains("<svg") && Contains("held-out loss"));
  const std::string page = read_text(t.folder() + "/runs.html");
  CHECK_THAT(page, Contains("<svg") && Contains("loss at the same steps") && !Contains("<script"));
  CHECK(t.sh("report a --csv one.csv").code == 0);
  CHECK_THAT(t.sh("report a b --json").text, Contains("--json is of one run"));
  CHECK(t.sh("report a nowhere").code != 0);
}
