#include "runtime/tokenizer/unicode.h"

#include <algorithm>
#include <vector>

namespace ltrain::data {

const uint8_t* char_classes() {
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> t(0x110000, kOther);
    for (int i = 0; i < kUnicodeRangeCount; ++i)
      std::fill(t.begin() + kUnicodeRanges[i].first, t.begin() + kUnicodeRanges[i].last + 1,
                kUnicodeRanges[i].cls);
    return t;
  }();
  return table.data();
}

size_t valid_utf8(std::string_view text) {
  const char *p = text.data(), *end = p + text.size();
  while (p < end) {
    if (static_cast<unsigned char>(*p) < 0x80) {
      ++p;
      continue;
    }
    const Char c = next_char(p, end);
    if (!c.valid) break;
    p += c.bytes;
  }
  return static_cast<size_t>(p - text.data());
}

std::string replaced_utf8(std::string_view text) {
  std::string out;
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    const Char c = next_char(p, end);
    c.valid ? out.append(p, static_cast<size_t>(c.bytes)) : out.append("\xEF\xBF\xBD");
    p += c.bytes;
  }
  return out;
}

}  // namespace ltrain::data
