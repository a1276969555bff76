#include "base/printable.h"

#include <fmt/format.h>

#include <cstdint>

namespace ltrain {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  ///< 0: invalid UTF-8 at this position
};

/// Unicode's table 3-7: rejects overlong forms, surrogates, and values beyond U+10FFFF.
Character decode(std::string_view s) {
  const auto byte = [&](size_t i) { return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u; };
  const auto tail = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const uint32_t b = byte(0);
  if (b < 0x80) return {b, 1};
  if (b >= 0xc2 && b < 0xe0 && tail(1)) return {(b & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (b >= 0xe0 && b < 0xf0 && tail(1) && tail(2)) {
    const uint32_t code = (b & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    return {code, code >= 0x800 && (code < 0xd800 || code > 0xdfff) ? 3u : 0u};
  }
  if (b >= 0xf0 && b < 0xf5 && tail(1) && tail(2) && tail(3)) {
    const uint32_t code =
        (b & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
    return {code, code >= 0x10000 && code <= 0x10ffff ? 4u : 0u};
  }
  return {};
}

/// Characters that a terminal interprets instead of showing: C0 and C1 controls, line and paragraph
/// separators, direction marks, and zero-width characters that hide the real text.
bool obeyed(uint32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0xad || c == 0x61c || (c >= 0x200b && c <= 0x200f) ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) || c == 0xfeff ||
         (c >= 0xfff9 && c <= 0xfffb) || (c >= 0xe0000 && c <= 0xe007f);
}

}  // namespace

std::string printable(std::string_view text, size_t most) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    const Character c = decode(text.substr(at));
    const size_t bytes = c.bytes ? c.bytes : 1;
    if (at + bytes > most) return out + fmt::format("... ({} bytes)", text.size());
    if (c.bytes == 0)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
    else if (c.code == '\n')
      out += "\\n";
    else if (c.code == '\r')
      out += "\\r";
    else if (c.code == '\t')
      out += "\\t";
    else if (obeyed(c.code))
      out += c.code < 0x80      ? fmt::format("\\x{:02x}", c.code)
             : c.code < 0x10000 ? fmt::format("\\u{:04x}", c.code)
                                : fmt::format("\\U{:08x}", c.code);
    else
      out.append(text.substr(at, c.bytes));
    at += bytes;
  }
  return out;
}

std::string printable_lines(std::string_view text) {
  constexpr size_t kMostLineBytes = 8192;
  std::string out;
  do {
    const size_t end = std::min(text.find('\n'), text.size());
    out += printable(text.substr(0, end), kMostLineBytes) + "\n";
    text.remove_prefix(std::min(end + 1, text.size()));
  } while (!text.empty());
  return out;
}

}  // namespace ltrain
