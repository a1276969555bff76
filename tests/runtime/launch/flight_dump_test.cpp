#include "runtime/launch/flight_dump.h"
#include "base/json/json.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "base/error.h"
#include "runtime/files/file.h"
#include "runtime/files/write_file.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using Catch::Contains;

namespace {

CollectiveInfo all_reduce(uint64_t sequence) {
  return {CollectiveOp::all_reduce, sequence, 4096, DType::f32, ReduceOp::sum, -1};
}

/// File of a rank that made `calls` all-reduces of a group of three, and is in the last one if `waits`.
void write_rank(const std::string& folder, int rank, uint64_t calls, bool waits) {
  FlightRing ring;
  const FlightRecord group("data");
  for (uint64_t i = 1; i <= calls; ++i) {
    ring.enter(&group, i, all_reduce(i));
    if (i < calls || !waits) ring.complete(&group, i);
  }
  write_flight(folder, {rank, 3, "a", "a test", "step", 7, {{"data[0-2]", {0, 1, 2}, &group}}}, ring);
}

}  // namespace

TEST_CASE("flight records: the file of a rank has its calls with sizes and times") {
  const test::TemporaryFolder folder;
  write_rank(folder.path() + "/flight", 1, 3, true);
  const auto j = nlohmann::json::parse(data::read_whole(flight_path(folder.path() + "/flight", 1), 1 << 20));
  CHECK((j["rank"] == 1 && j["host"] == "a" && j["reason"] == "a test" && j["section"] == "step" &&
         j["step"] == 7));
  REQUIRE(j["calls"].size() == 3);
  const auto& last = j["calls"][2];
  CHECK((last["call"] == "all_reduce #3 of 4096 f32" && last["bytes"] == 16384 &&
         last["group"] == "data[0-2]"));
  CHECK((last["end"].is_null() && last["waiting_seconds"].get<double>() >= 0));
  CHECK(j["calls"][1]["end"].get<double>() >= j["calls"][1]["begin"].get<double>());
}

TEST_CASE("flight records together name the rank that has not entered a call, and since when others wait") {
  const test::TemporaryFolder folder;
  write_rank(folder.path(), 0, 5, true);
  write_rank(folder.path(), 1, 4, false);
  write_rank(folder.path(), 2, 5, true);
  std::vector<std::string> lines = merge_flights(folder.path());
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], Contains("group data[0-2], all_reduce #5 of 4096 f32: ranks 0, 2 wait since ") ||
                           Contains("ranks 0,2 wait since "));
  CHECK_THAT(lines[0],
             Contains("not entered by rank 1, whose last call there, all_reduce #4 of 4096 f32, ended at"));
  // A rank that was killed has no file.
  std::filesystem::remove(flight_path(folder.path(), 1));
  lines = merge_flights(folder.path());
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], Contains("no record of rank 1"));
  // Files of an earlier attempt count no more.
  CHECK(merge_flights(folder.path(), unix_seconds() + 1).empty());
  CHECK(merge_flights(folder.path() + "/nowhere").empty());
}

TEST_CASE("flight records of ranks that wait for nobody say nothing") {
  const test::TemporaryFolder folder;
  for (int rank = 0; rank < 3; ++rank) write_rank(folder.path(), rank, 5, false);
  CHECK(merge_flights(folder.path()).empty());
}

TEST_CASE("flight records that are malformed become a sentence, and the others count") {
  const test::TemporaryFolder folder;
  write_rank(folder.path(), 0, 5, true);
  write_rank(folder.path(), 2, 4, false);
  for (const char* text :
       {"", "[]", "{", "{\"groups\":[],\"calls\":[]}", "{\"rank\":-3,\"groups\":[],\"calls\":[]}",
        "{\"rank\":1e300,\"groups\":[],\"calls\":[]}", "\xff"}) {
    write_file(flight_path(folder.path(), 1), text);
    const std::vector<std::string> lines = merge_flights(folder.path());
    INFO(text);
    REQUIRE(lines.size() == 2);
    CHECK_THAT(lines[0], Contains("rank-00001.json"));
  }
  // Odd members and times are ignored.
  write_file(
      flight_path(folder.path(), 1),
      R"({"rank":1,"written_at":1e300,"groups":[7,{"group":5},{"group":"data[0-2]","members":[-1,1e9,"x"]}],)"
      R"("calls":[3,{"group":"data[0-2]","op":"all_reduce","sequence":1e308,"begin":-1e308}]})");
  CHECK_NOTHROW(merge_flights(folder.path()));
}
