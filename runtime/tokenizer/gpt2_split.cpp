#include "runtime/tokenizer/gpt2_split.h"

#include "runtime/tokenizer/unicode.h"

namespace ltrain::data {
namespace {

struct Classified {
  int bytes;
  CharClass cls;
};

inline Classified classify(const uint8_t* table, const char* p, const char* end) {
  const Char c = next_char(p, end);
  return {c.bytes, c.valid ? static_cast<CharClass>(table[c.code]) : kOther};
}

/// Bytes of the contraction after the apostrophe at p, or 0.
int64_t contraction(const char* p, const char* end) {
  if (end - p < 2) return 0;
  switch (p[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return end - p >= 3 && p[2] == 'e' ? 3 : 0;
    case 'l':
      return end - p >= 3 && p[2] == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

bool ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/// Returns whether the character that ends before text[at] is a space. at > 0.
bool space_before(const uint8_t* table, std::string_view text, int64_t at) {
  // A character never contains another one's lead byte, so backward search finds the same character as
  // forward reading.
  for (int64_t bytes = 1; bytes <= 4 && bytes <= at; ++bytes) {
    const char* p = text.data() + at - bytes;
    if ((static_cast<unsigned char>(*p) & 0xC0u) == 0x80u) continue;
    const Classified c = classify(table, p, text.data() + at);
    return c.bytes == bytes && c.cls == kS;
  }
  return false;
}

}  // namespace

int64_t gpt2_piece(std::string_view text) {
  const uint8_t* table = char_classes();
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  if (*begin == '\'')
    if (const int64_t n = contraction(begin, end)) return n;

  const char* p = begin;
  Classified c = classify(table, p, end);
  if (*p == ' ' && end - p > 1) {
    const Classified after = classify(table, p + 1, end);
    if (after.cls != kS) {
      ++p;
      c = after;
    }
  }
  const CharClass cls = c.cls;
  const char* last = p;  // last character of the run
  p += c.bytes;
  while (p < end && (c = classify(table, p, end)).cls == cls) {
    last = p;
    p += c.bytes;
  }
  // The last of several spaces before other text belongs to that text.
  if (cls == kS && p < end && last > begin) p = last;
  return p - begin;
}

int64_t gpt2_safe_cut(std::string_view text) {
  const uint8_t* table = char_classes();
  for (int64_t at = static_cast<int64_t>(text.size()) - 1; at > 0; --at)
    if (ascii_space(text[at]) && !space_before(table, text, at)) return at;
  return 0;
}

int64_t word_cut(std::string_view text) {
  const uint8_t* table = char_classes();
  for (int64_t at = static_cast<int64_t>(text.size()) - 1; at > 0; --at)
    if (text[at] == ' ' && !space_before(table, text, at)) return at;
  return 0;
}

}  // namespace ltrain::data
