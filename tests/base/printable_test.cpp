#include "base/printable.h"

#include <catch2/catch.hpp>
#include <random>

using ltrain::printable;

TEST_CASE("printable: what a terminal obeys becomes an escape, what it shows stays") {
  CHECK(printable("") == "");
  CHECK(printable("runs/alice's run-1 [ok] \\ 100 %") == "runs/alice's run-1 [ok] \\ 100 %");
  CHECK(printable("größe 模型 🚀") == "größe 模型 🚀");
  CHECK(printable("\x1b[31mred\x1b[0m") == "\\x1b[31mred\\x1b[0m");
  CHECK(printable("a\nb\rc\td") == "a\\nb\\rc\\td");
  CHECK(printable(std::string_view("a\0b\x7f", 4)) == "a\\x00b\\x7f");
  CHECK(printable("\xc2\x9b"
                  "31m") == "\\u009b31m");                         // CSI as one character of C1
  CHECK(printable("\xe2\x80\xaegpj.exe") == "\\u202egpj.exe");     // right to left from here
  CHECK(printable("a\xe2\x80\xa8z") == "a\\u2028z");               // a line separator
  CHECK(printable("a\xf3\xa0\x81\x81z") == "a\\U000e0041z");       // a tag, that nobody sees
  CHECK(printable("\xff\xfe\x80z") == "\\xff\\xfe\\x80z");         // no UTF-8
  CHECK(printable("\xc0\x9b") == "\\xc0\\x9b");                    // overlong
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");           // a surrogate
  CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");  // beyond Unicode
  CHECK(printable("\xe2\x80") == "\\xe2\\x80");                    // ends in a character
}

TEST_CASE("printable: a message is bounded, and cut between characters") {
  CHECK(printable("abcdef", 6) == "abcdef");
  CHECK(printable("abcdefg", 6) == "abcdef... (7 bytes)");
  CHECK(printable("abc\xc3\xb6z", 4) == "abc... (6 bytes)");
  CHECK(printable(std::string(1 << 20, 'x')).size() < 1100);
  CHECK(printable(std::string(1 << 20, '\x1b')).size() < 4100);
}

TEST_CASE("printable: of any bytes comes a line of valid UTF-8 that no terminal obeys, and twice is once") {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string text(random() % 24, '\0');
    for (char& c : text)
      c = static_cast<char>(random() % 3 ? random() % 256 : "\x1b\x9b\xc2\xe2\x80\xae\xf3\xa0"[random() % 8]);
    const std::string out = printable(text);
    for (unsigned char c : out) REQUIRE((c >= 0x20 && c != 0x7f));
    for (const char* bad : {"\xc2\x9b", "\xe2\x80\xae", "\xe2\x80\xa8", "\xf3\xa0\x81"})
      REQUIRE(out.find(bad) == std::string::npos);
    REQUIRE(printable(out) == out);
  }
}
