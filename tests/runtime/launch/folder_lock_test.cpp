#include "runtime/launch/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/error.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using Catch::Contains;

namespace {

ExitCode code_of(const std::string& folder, std::string* text) {
  try {
    const FolderLock lock(folder, "uses this folder");
  } catch (const Error& e) {
    *text = e.what();
    return e.code();
  }
  return ExitCode::done;
}

}  // namespace

TEST_CASE("a folder has one lock, and who is refused changes no byte, and hears who has it") {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() + "/.lock";
  std::optional<FolderLock> first(std::in_place, folder.path(), "uses this folder");
  CHECK(first->held());
  const std::string owner = test::read_file(path);
  CHECK_THAT(owner, Contains(std::to_string(::getpid())));
  const auto written = std::filesystem::last_write_time(path);
  std::string why;
  CHECK(code_of(folder.path(), &why) == ExitCode::storage);
  CHECK_THAT(why, Contains("another run uses this folder (" + owner + ")") && Contains("output_dir"));
  CHECK(test::read_file(path) == owner);
  CHECK(std::filesystem::last_write_time(path) == written);
  first.reset();
  CHECK(code_of(folder.path(), &why) == ExitCode::done);
}

TEST_CASE("a lock ends with the last process that has it, however it ends") {
  const test::TemporaryFolder folder;
  int ready[2], hold[2];
  REQUIRE((::pipe(ready) == 0 && ::pipe(hold) == 0));
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    const FolderLock lock(folder.path(), "uses this folder");
    const pid_t rank = ::fork();
    if (rank == 0) {  // inherits it
      ::close(hold[1]);
      char byte;
      [[maybe_unused]] ssize_t n = ::write(ready[1], "r", 1);
      n = ::read(hold[0], &byte, 1);  // until the test lets go
      ::_exit(0);
    }
    ::pause();
    ::_exit(0);
  }
  char byte;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  std::string why;
  CHECK(code_of(folder.path(), &why) == ExitCode::storage);
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  CHECK(code_of(folder.path(), &why) == ExitCode::storage);  // its rank still writes
  ::close(hold[0]), ::close(hold[1]);
  for (int i = 0; i < 500 && code_of(folder.path(), &why) != ExitCode::done; ++i) ::usleep(10000);
  CHECK(code_of(folder.path(), &why) == ExitCode::done);
  ::close(ready[0]), ::close(ready[1]);
}

TEST_CASE("a stranger's link is not followed, and what it points to stays as it is") {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() + "/.lock", victim = folder.path() + "/victim";
  std::ofstream(victim) << "precious";
  std::string why;
  SECTION("symbolic") { std::filesystem::create_symlink(victim, path); }
  SECTION("symbolic, to what is not there") { std::filesystem::create_symlink(folder.path() + "/new", path); }
  SECTION("hard") { std::filesystem::create_hard_link(victim, path); }
  SECTION("a pipe that nobody reads") { REQUIRE(::mkfifo(path.c_str(), 0600) == 0); }
  SECTION("a folder") { std::filesystem::create_directory(path); }
  CHECK(code_of(folder.path(), &why) == ExitCode::storage);
  CHECK_THAT(why, Contains(path));
  CHECK(test::read_file(victim) == "precious");
  CHECK_FALSE(std::filesystem::exists(folder.path() + "/new"));
}

TEST_CASE("what a stranger wrote into a lock file reaches no terminal") {
  const test::TemporaryFolder folder;
  const FolderLock lock(folder.path(), "uses this folder");
  std::ofstream(folder.path() + "/.lock") << "\x1b[31mprocess\n1" << std::string(100000, 'x');
  std::string why;
  CHECK(code_of(folder.path(), &why) == ExitCode::storage);
  CHECK(why.size() < 600);
  CHECK_THAT(why, Contains("\\x1b[31mprocess\\n1"));
}

TEST_CASE("a run's folder is made with its lock") {
  const test::TemporaryFolder folder;
  const FolderLock lock = lock_output(folder.path() + "/runs/one");
  CHECK(lock.held());
  CHECK(std::filesystem::exists(folder.path() + "/runs/one/.lock"));
  std::ofstream(folder.path() + "/file") << "";
  CHECK_THROWS_WITH(lock_output(folder.path() + "/file/run"), Contains("output_dir"));
}
