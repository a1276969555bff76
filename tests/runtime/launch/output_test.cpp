// Output of ranks that the launcher keeps.
#include "runtime/launch/supervisor/output.h"

#include <catch2/catch.hpp>

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
