// Files in memory, and their records, for tests of readers.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "base/json/json.h"
#include "runtime/files/file.h"
#include "runtime/records/fields.h"
#include "tests/runtime/data/support.h"

namespace ltrain::records::test {

using nlohmann::json;

/// A file without a name whose content can be changed.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("records", MFD_CLOEXEC)) { REQUIRE(fd_.get() >= 0); }
  std::shared_ptr<const data::InputFile> with(const std::string& content) {
    REQUIRE(::ftruncate(fd_.get(), 0) == 0);
    REQUIRE(::pwrite(fd_.get(), content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
    return open();
  }
  std::shared_ptr<const data::InputFile> cut_to(size_t bytes) {
    REQUIRE(::ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0);
    return open();
  }

 private:
  std::shared_ptr<const data::InputFile> open() const {
    return std::make_shared<data::InputFile>("/proc/self/fd/" + std::to_string(fd_.get()));
  }
  Fd fd_;
};

using Open = std::unique_ptr<RecordSource> (*)(std::shared_ptr<const data::InputFile>, std::string,
                                               const Selection&);

inline Selection field(const std::string& name) { return {{name}, false}; }
inline Selection as_json(std::vector<std::string> names = {}) { return {std::move(names), true}; }

/// At most `most` records.
inline std::vector<Record> read_all(RecordSource& source, size_t most = 1'000'000) {
  std::vector<Record> all;
  Record record;
  while (all.size() < most && source.next(record)) all.push_back(record);
  return all;
}

using data::test::error_of;  // "65: TEXT"
using data::test::read_file;

/// Counts how many damaged forms of a file end in an error. All others are read to the end; a crash or
/// another exception fails the test.
struct Outcomes {
  int errors = 0, read = 0;
};

inline void read_damaged(Open open, const std::shared_ptr<const data::InputFile>& file,
                         const Selection& selection, Outcomes& outcomes) {
  try {
    const auto source = open(file, "file", selection);
    Record record;
    for (int rows = 0; rows < 2000 && source->next(record); ++rows) {
    }
    ++outcomes.read;
  } catch (const Error& e) {
    if (e.code() != ExitCode::data) FAIL(e.what());
    ++outcomes.errors;
  }
}

/// Every length of the file (under a sanitizer every seventh), and `changes` files with one to four bytes
/// changed.
inline void damage(Open open, const std::string& content, int changes, Outcomes& cut, Outcomes& changed) {
  MemoryFile file;
  file.with(content);
#ifdef LTRAIN_SANITIZE
  constexpr size_t kStep = 7;
#else
  constexpr size_t kStep = 1;
#endif
  for (size_t bytes = content.size() - 1; bytes > kStep; bytes -= kStep)
    read_damaged(open, file.cut_to(bytes), as_json(), cut);
  std::mt19937 random(1);
  for (int i = 0; i < changes; ++i) {
    std::string bytes = content;
    for (unsigned left = 1 + random() % 4; left > 0; --left)
      bytes[random() % bytes.size()] = static_cast<char>(random() % 3 == 0 ? random() % 2 * 255 : random());
    read_damaged(open, file.with(bytes), as_json(), changed);
  }
}

/// Files of tests/golden/records with this ending, and the rows that pyarrow reads from them.
inline std::vector<std::pair<std::string, json>> golden_files(const std::string& ending) {
  const json expected = json::parse(read_file(LTRAIN_SOURCE_DIR "/tests/golden/records/expected.json"));
  std::vector<std::pair<std::string, json>> files;
  for (const auto& [name, table] : expected["files"].items())
    if (name.ends_with(ending)) files.emplace_back(name, expected["tables"][table.get<size_t>()]);
  REQUIRE(!files.empty());
  return files;
}

}  // namespace ltrain::records::test
