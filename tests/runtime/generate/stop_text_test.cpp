#include "runtime/generate/stop_text.h"

#include <catch2/catch.hpp>

using namespace ltrain;

namespace {
/// Text shown when it grows by one byte at a time, with "|" between parts that came at once.
std::string shown(const std::string& text, std::vector<std::string> stops, bool* stopped = nullptr) {
  StopText t(std::move(stops));
  std::string out;
  for (size_t n = 1; n <= text.size() && !t.stopped(); ++n)
    if (const std::string part = t.show(text.substr(0, n)); !part.empty()) out += part + "|";
  out += t.rest();
  if (stopped) *stopped = t.stopped();
  return out;
}
}  // namespace

TEST_CASE("text is shown as it comes, whole characters at a time") {
  CHECK(shown("abc", {}) == "a|b|c|");
  CHECK(shown("aé日😀.", {}) == "a|é|日|😀|.|");
  CHECK(shown("a\xe6\x97", {}) == "a|\xe6\x97");  // no more came: what there is
}

TEST_CASE("nothing from a stop string on is shown, and nothing that may be its beginning") {
  bool stopped = false;
  CHECK(shown("one\n\ntwo", {"\n\n"}, &stopped) == "o|n|e|");
  CHECK(stopped);
  CHECK(shown("one\ntwo", {"\n\n"}, &stopped) == "o|n|e|\nt|w|o|");  // held back until it was another
  CHECK_FALSE(stopped);
  CHECK(shown("aab", {"ab"}) == "a|");
  CHECK(shown("stop here", {"", "here", "p h"}) ==
        "s|t|o|");  // the one that begins first wins; an empty one is ignored
  CHECK(shown("x END", {"END"}) == "x| |");
  CHECK(shown("x EN", {"END"}, &stopped) == "x| |EN");
  CHECK_FALSE(stopped);
}

TEST_CASE("a text whose beginning changes when more tokens come waits until it is as it was shown") {
  StopText t({});
  CHECK(t.show("ab") == "ab");
  CHECK(t.show("a?") == "");
  CHECK(t.show("abc") == "c");
}
