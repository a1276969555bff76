// A file of records on a disk that is full for a while: a limit on the size of files stands in for the disk.
#include "runtime/telemetry/append_file.h"
#include "base/json/json.h"

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/error.h"
#include "base/limits.h"
#include "runtime/telemetry/metrics.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

/// No file grows beyond `bytes` while it lives.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    take_file_size_as_error();
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

StepMetrics step(int64_t n) {
  StepMetrics m;
  m.step = n, m.train_steps = m.end_step = 100;
  m.lm_loss = 1.0 / static_cast<double>(n);
  return m;
}

}  // namespace

TEST_CASE("records that find no room are written later, whole and in order, with a warning", "[telemetry]") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/records";
  AppendFile f(path, false);
  f.append("first 9\n");
  CHECK(f.notes().empty());
  {
    const FullDisk full(12);
    f.append("second 10\n");
    CHECK(read_file(path) == "first 9\nseco");  // a torn line, while there is no room
    const auto notes = f.notes();
    REQUIRE(notes.size() == 1);
    CHECK_THAT(notes[0], Catch::StartsWith("warning: " + path + " cannot be written: File too large"));
    f.append("third 9\n");
    CHECK(f.notes().empty());  // said once
  }
  f.append("fourth\n");
  CHECK(read_file(path) == "first 9\nsecond 10\nthird 9\nfourth\n");
  CHECK(f.notes() == std::vector<std::string>{path + " is written again; nothing is missing"});
  {
    const FullDisk full(1);
    f.append("fifth\n");
    CHECK_THAT(f.notes().at(0), Contains("cannot be written"));  // another time, another warning
  }
}

TEST_CASE("records beyond the memory for them are dropped whole and counted", "[telemetry]") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/records";
  AppendFile f(path, false, 8);
  {
    const FullDisk full(2);
    for (const char* record : {"1234\n", "56\n", "7\n", "8\n"}) f.append(record);
    CHECK(read_file(path) == "12");
  }
  f.retry();
  CHECK(read_file(path) == "1234\n56\n7\n");
  const auto notes = f.notes();
  REQUIRE(notes.size() == 2);
  CHECK_THAT(notes[1], Contains("1 records are missing"));
}

TEST_CASE("a file that stays without room ends with its last whole record", "[telemetry]") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/records";
  {
    std::optional<AppendFile> f(std::in_place, path, false);
    f->append("first\n");
    const FullDisk full(9);
    f->append("second\n");
    f->append("third\n");
    f->notes();
    f->finish();
    CHECK(f->notes() == std::vector<std::string>{"warning: 2 records are missing at the end of " + path +
                                                 ": there was no room for them"});
    CHECK(read_file(path) == "first\nsec");
    f.reset();
    CHECK(read_file(path) == "first\n");
  }
  const TemporaryFolder none;
  CHECK_THROWS_WITH(AppendFile(none.path() + "/no/file", false),
                    Contains("no/file: cannot be written: No such"));
}

TEST_CASE("metrics.jsonl and TensorBoard have every step although the disk was full for a while",
          "[telemetry]") {
  const auto files = [](bool full_for_a_while) {
    const TemporaryFolder folder;
    std::vector<std::string> notes;
    {
      MetricsWriter w(folder.path(), true, 0);
      for (int64_t n = 1; n <= 9; ++n) {
        std::optional<FullDisk> full;
        if (full_for_a_while && n >= 4 && n <= 6) full.emplace(1001);
        w.step(step(n));
        for (const std::string& note : w.notes()) notes.push_back(note);
      }
      CHECK(w.finish().empty());
    }
    CHECK(notes.size() == (full_for_a_while ? 4 : 0));  // each file: fails, works again
    std::vector<int64_t> steps;
    std::ifstream in(folder.path() + "/metrics.jsonl");
    for (std::string line; std::getline(in, line);)
      steps.push_back(nlohmann::json::parse(line)["step"].get<int64_t>());
    CHECK(steps == std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9});
    for (const auto& e : std::filesystem::directory_iterator(folder.path()))
      if (e.path().filename().string().starts_with("events.")) return e.file_size();
    return std::uintmax_t{0};
  };
  CHECK(files(true) == files(false));
}
