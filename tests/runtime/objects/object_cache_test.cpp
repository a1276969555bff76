#include "runtime/objects/object_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "base/fd.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::objects;
namespace fs = std::filesystem;

namespace {

struct Folder {
  test::TemporaryFolder folder;
  std::string path(const std::string& name) const { return folder.path() + "/" + name; }

  /// A copy that was opened `second` seconds after 1970.
  void add(const std::string& name, size_t bytes, int64_t second) const {
    std::ofstream(path(name)) << std::string(bytes, 'x');
    const timespec times[2] = {{second, 0}, {second, 0}};
    REQUIRE(::utimensat(AT_FDCWD, path(name).c_str(), times, 0) == 0);
  }
  Fd lock(const std::string& name, int kind) const {
    Fd fd(::open(path(name + ".lock").c_str(), O_RDWR | O_CREAT, 0666));
    REQUIRE(::flock(fd.get(), kind) == 0);
    return fd;
  }
  bool has(const std::string& name) const { return fs::exists(path(name)); }
};

constexpr int64_t kBlock = 4096;  // a multiple of what file systems give

}  // namespace

TEST_CASE("copies of objects: the least recently opened are deleted, until there is room") {
  const Folder f;
  f.add("new", 4 * kBlock, 300);
  f.add("old", 4 * kBlock, 100);
  f.add("begun.part", 4 * kBlock, 200);
  CHECK(make_room(f.folder.path(), 16 * kBlock, 4 * kBlock, ""));
  CHECK(f.has("old"));
  CHECK(make_room(f.folder.path(), 16 * kBlock, 8 * kBlock, ""));
  CHECK_FALSE(f.has("old"));
  CHECK_FALSE(f.has("old.lock"));
  CHECK(f.has("begun.part"));
  CHECK(make_room(f.folder.path(), 16 * kBlock, 12 * kBlock, "begun"));  // its own beginning stays
  CHECK(f.has("begun.part"));
  CHECK(f.has("new"));
  CHECK(make_room(f.folder.path(), 16 * kBlock, 12 * kBlock, ""));
  CHECK_FALSE(f.has("begun.part"));
  CHECK(f.has("new"));
}

TEST_CASE("copies of objects: those that are read or downloaded stay, and there is no room then") {
  const Folder f;
  f.add("read", 4 * kBlock, 100);
  f.add("begun.part", 4 * kBlock, 200);
  f.add("free", 4 * kBlock, 300);
  const Fd reader = f.lock("read", LOCK_SH), writer = f.lock("begun", LOCK_EX);
  CHECK_FALSE(make_room(f.folder.path(), 12 * kBlock, 8 * kBlock, ""));
  CHECK(f.has("read"));
  CHECK(f.has("begun.part"));
  CHECK_FALSE(f.has("free"));
}
