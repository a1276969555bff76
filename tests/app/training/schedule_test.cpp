// ltrain plan --schedule, as a program.
#include <catch2/catch.hpp>
#include <sstream>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;
using nlohmann::json;

TEST_CASE("plan --schedule draws, writes files, and writes JSON") {
  TempRun t;
  const Outcome drawn = t.sh("plan tiny.yaml --schedule", "COLUMNS=60");
  CHECK(drawn.code == 0);
  CHECK_THAT(drawn.text,
             Contains("1f1b: 1 rank, 1 chunk a rank, 2 micro-batches; costs in seconds by the profile") &&
                 Contains("\nrank 0 F0") && Contains("bubble 0.0 %") && !Contains("\x1b"));
  std::istringstream lines(drawn.text);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind("rank 0", 0) == 0) CHECK(line.size() <= 60);

  const Outcome both = t.sh("plan tiny.yaml --schedule-svg s.svg --schedule-csv s.csv");
  CHECK(both.code == 0);
  CHECK(both.text == "");
  CHECK(read_file(t.folder() + "/s.csv") == "0F0,0B0,0F1,0B1\n");
  CHECK_THAT(read_file(t.folder() + "/s.svg"), Contains("<title>0F0: "));

  const Outcome as_json = t.sh("plan tiny.yaml --schedule --json");
  CHECK(as_json.code == 0);
  const json j = json::parse(as_json.text);
  CHECK(j["schema"] == "ltrain.schedule.v1");
  CHECK(j["micro_batches"] == 2);
  CHECK(j["by_rank"][0]["actions"].size() == 4);

  const Outcome nowhere = t.sh("plan tiny.yaml --schedule-csv no/such/folder/s.csv");
  CHECK(nowhere.code == 73);
  CHECK_THAT(nowhere.text, Contains("no/such/folder/s.csv: cannot be written"));
}

TEST_CASE("plan takes a schedule file, with its notes on stderr, or refuses it") {
  TempRun t;
  std::ofstream(t.folder() + "/s.csv") << "0F0,0F1,0SEND_F0,0B1,0B0\n";
  const Outcome good = t.sh("plan tiny.yaml parallel.schedule_file=s.csv --schedule --schedule-csv back.csv");
  CHECK(good.code == 0);
  CHECK_THAT(good.text, Contains("s.csv: 1 SEND_F passed over"));
  CHECK(read_file(t.folder() + "/back.csv") == "0F0,0F1,0B1,0B0\n");
  std::ofstream(t.folder() + "/bad.csv") << "0F0,0B0,0F1,0X1\n";
  const Outcome bad = t.sh("plan tiny.yaml parallel.schedule_file=bad.csv --schedule");
  CHECK(bad.code == 64);
  CHECK_THAT(bad.text, Contains("bad.csv:1: cell 4, 0X1: an action is STAGE KIND MICRO-BATCH"));
}
