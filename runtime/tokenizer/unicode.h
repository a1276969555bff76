// Classes of code points, and UTF-8, for GPT-2's pattern.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ltrain::data {

enum CharClass : uint8_t { kOther = 0, kL = 1, kN = 2, kS = 3 };  ///< other; letter; number; White_Space

struct UnicodeRange {
  uint32_t first, last;
  CharClass cls;
};
extern const UnicodeRange kUnicodeRanges[];  ///< generated in unicode_table.cpp
extern const int kUnicodeRangeCount;

/// Class of every code point; array of 0x110000.
const uint8_t* char_classes();

struct Char {
  int bytes = 0;      ///< 1 to 4
  uint32_t code = 0;  ///< unset for an invalid byte
  bool valid = false;
};

/// The character at p < end. A byte that does not start valid UTF-8 (overlong forms and surrogates are
/// invalid) is one invalid character of one byte.
inline Char next_char(const char* p, const char* end) {
  const auto* u = reinterpret_cast<const unsigned char*>(p);
  const uint32_t a = u[0];
  if (a < 0x80) return {1, a, true};
  const int64_t left = end - p;
  auto tail = [&](int i) { return (u[i] & 0xC0u) == 0x80u; };
  if (a >= 0xC2 && a <= 0xDF && left >= 2 && tail(1)) return {2, (a & 0x1Fu) << 6 | (u[1] & 0x3Fu), true};
  if ((a & 0xF0u) == 0xE0u && left >= 3 && tail(1) && tail(2)) {
    const uint32_t c = (a & 0xFu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu);
    if (c >= 0x800 && (c < 0xD800 || c > 0xDFFF)) return {3, c, true};
  }
  if (a >= 0xF0 && a <= 0xF4 && left >= 4 && tail(1) && tail(2) && tail(3)) {
    const uint32_t c = (a & 7u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu);
    if (c >= 0x10000 && c <= 0x10FFFF) return {4, c, true};
  }
  return {1, 0, false};
}

/// Number of bytes before the first one that is not valid UTF-8.
size_t valid_utf8(std::string_view text);
/// `text` with each invalid byte replaced by U+FFFD.
std::string replaced_utf8(std::string_view text);

}  // namespace ltrain::data
