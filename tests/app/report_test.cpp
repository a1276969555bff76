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
  const std::string csv = read_file(t.folder() + "/runs.csv");
  CHECK_THAT(csv, Catch::StartsWith("run,first_step,last_step,loss,") && Contains("\na,6,6,") &&
                      Contains("\nb,4,4,") && !Contains("\nb,5,5,"));
  CHECK_THAT(read_file(t.folder() + "/runs.svg"), Contains("<svg") && Contains("held-out loss"));
  const std::string page = read_file(t.folder() + "/runs.html");
  CHECK_THAT(page, Contains("<svg") && Contains("loss at the same steps") && !Contains("<script"));
  CHECK(t.sh("report a --csv one.csv").code == 0);
  CHECK_THAT(t.sh("report a b --json").text, Contains("--json is of one run"));
  CHECK(t.sh("report a nowhere").code != 0);
  const std::string sync = t.sh("report a b/metrics.jsonl --wandb tracked --project p").text;
  CHECK_THAT(sync, Catch::StartsWith("wandb sync tracked/offline-run-") && Contains("\nwandb sync tracked/"));
  CHECK_THAT(t.sh("report a --mlflow store").text, Contains("mlflow ui --backend-store-uri store"));
  CHECK_THAT(t.sh("report nowhere --wandb tracked").text, Contains("expected the output_dir of a run"));
}

TEST_CASE("a peak that was measured beside other work gives no MFU above 100 %, and is measured again") {
  TempRun t;
  const std::string here = "LTRAIN_PROFILE=" + t.folder() + "/profile.json",
                    file = t.folder() + "/peaks.json";
  const auto peaks = [&] { return nlohmann::json::parse(read_file(file)); };
  for (int i = 0; i < 3; ++i) REQUIRE(t.sh("run tiny.yaml checkpoint.resume=never", here).code == 0);
  REQUIRE(peaks().size() == 1);
  CHECK(peaks().begin().value().at("measurements") == 3);
  // Peaks of a machine with a thousandth of the time.
  nlohmann::json low = peaks();
  const double best = low.begin().value().at("flops");
  low.begin().value()["flops"] = best / 1000;
  std::ofstream(file) << low;
  const Outcome o = t.sh("run tiny.yaml checkpoint.resume=never", here);
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text, Contains(" % of the fastest matmul that was measured here") &&
                         Contains("the next runs measure again"));
  for (const std::string& mfu : t.metric("mfu")) CHECK(std::stod(mfu.substr(mfu.find(':') + 1)) <= 1);
  CHECK(peaks().begin().value().at("measurements") == 0);
  CHECK(peaks().begin().value().at("flops") > best / 1000);
  REQUIRE(t.sh("run tiny.yaml checkpoint.resume=never", here).code == 0);
  CHECK(peaks().begin().value().at("measurements") == 1);
  CHECK(peaks().begin().value().at("flops") > best / 100);
}
