// Output of ranks that the launcher keeps.
#include "runtime/launch/supervisor/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "base/error.h"
#include "runtime/launch/supervisor/rank_log.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;

TEST_CASE("a log keeps what stays on the terminal, without escape sequences, however the bytes arrive") {
  const std::string bytes =
      "hello\r\n\033[1mstep 1/9\033[0m  loss 5\r\033[K\033[1mstep 2/9\033[0m  loss 4\n"
      "step 3/9\rstep 4/9  a\033]0;x\033[2Jb\nlast";
  const std::string kept = "hello\nstep 2/9  loss 4\nstep 4/9  a0;xb\nlast";
  for (size_t cut = 1; cut <= bytes.size(); ++cut) {
    PlainText plain;
    std::string text;
    for (size_t at = 0; at < bytes.size(); at += cut)
      text += plain.add(std::string_view(bytes).substr(at, cut));
    CHECK(text + plain.finish() == kept);
  }
  PlainText plain;
  CHECK(plain.add("no escapes\tat all\n\nx\n") == "no escapes\tat all\n\nx\n");
  const std::string longest(1 << 20, 'x');
  std::string text = plain.add(longest);
  text += plain.finish();
  const bool same = text == longest;
  CHECK(same);  // a failed comparison would print both
}

TEST_CASE("a log that reaches its size is kept once under another name, and no line is lost") {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() + "/rank-00000.log";
  const auto size = [](const std::string& file) {
    std::error_code error;
    return std::filesystem::exists(file, error) ? static_cast<int64_t>(std::filesystem::file_size(file)) : -1;
  };
  {
    RankLog log(path, 100);
    for (int i = 0; i < 12; ++i) log.write("a line of 24 characters\n");
  }
  CHECK(size(path) == 96);  // the lines 9 to 12
  CHECK(size(path + ".1") == 96);
  RankLog again(path, 100);  // a later attempt counts what is there
  again.write("one more line\n");
  CHECK(size(path) == 14);
  RankLog unbounded(path, 0);
  for (int i = 0; i < 12; ++i) unbounded.write("a line of 24 characters\n");
  CHECK(size(path) == 14 + 12 * 24);
  std::filesystem::create_symlink(path, folder.path() + "/link.log");
  CHECK_THROWS_WITH(RankLog(folder.path() + "/link.log", 100),
                    Catch::Contains("this is a symbolic link: remove it"));
  REQUIRE(::mkfifo((folder.path() + "/pipe.log").c_str(), 0600) == 0);
  CHECK_THROWS_AS(RankLog(folder.path() + "/pipe.log", 100), Error);
}
