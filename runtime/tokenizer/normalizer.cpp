#include "runtime/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "runtime/tokenizer/unicode.h"

namespace ltrain::data {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

struct CodeRange {
  uint32_t first, last;
};
/// Code points that the tables of Hugging Face's tokenizers do not have, and which it leaves as they are (ids
/// must be the same). Made by scripts/golden/make-normalization-table.py.
// clang-format off
constexpr CodeRange kLeftAlone[] = {
    {0x7FD, 0x7FD}, {0x898, 0x89F}, {0x8CA, 0x8D3}, {0x9FE, 0x9FE}, {0xC3C, 0xC3C}, {0xD3B, 0xD3C},
    {0xEBA, 0xEBA}, {0x1715, 0x1715}, {0x1ABF, 0x1ACE}, {0x1DF6, 0x1DFA}, {0x32FF, 0x32FF}, {0xA7F2,
    0xA7F4}, {0xA82C, 0xA82C}, {0xAB69, 0xAB69}, {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2,
    0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070,
    0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11935,
    0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34,
    0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97,
    0x11D97}, {0x16FF0, 0x16FF1}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1F16C,
    0x1F16C}, {0x1FBF0, 0x1FBF9}};
// clang-format on

bool left_alone(const Char& c) {
  if (!c.valid) return true;
  if (c.code < kLeftAlone[0].first) return false;
  const auto* range = std::upper_bound(std::begin(kLeftAlone), std::end(kLeftAlone), c.code,
                                       [](uint32_t code, const CodeRange& r) { return code < r.first; });
  return range != std::begin(kLeftAlone) && c.code <= range[-1].last;
}

/// Calls `part(text, alone)` with the longest runs of what is normalized, and of what is left alone.
template <class F>
void each_run(std::string_view text, F&& part) {
  const char *p = text.data(), *const end = p + text.size();
  while (p < end) {
    const char* const begin = p;
    const bool alone = left_alone(next_char(p, end));
    while (p < end) {
      const Char c = next_char(p, end);
      if (left_alone(c) != alone) break;
      p += c.bytes;
    }
    part(std::string_view(begin, static_cast<size_t>(p - begin)), alone);
  }
}

void to_form(std::string& text, UnicodeForm form) {
  if (is_ascii(text)) return;
  int options = UTF8PROC_STABLE;
  options |= form == UnicodeForm::nfc || form == UnicodeForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::nfkc || form == UnicodeForm::nfkd) options |= UTF8PROC_COMPAT;
  std::string out;
  each_run(text, [&](std::string_view run, bool alone) {
    if (alone) {
      out += run;
      return;
    }
    utf8proc_uint8_t* to = nullptr;
    const utf8proc_ssize_t n =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(run.data()),
                     static_cast<utf8proc_ssize_t>(run.size()), &to, static_cast<utf8proc_option_t>(options));
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(to, &std::free);
    if (n < 0)
      fail(ExitCode::data, "Unicode normalization of {} bytes of text failed: {}", run.size(),
           utf8proc_errmsg(n));
    out.append(reinterpret_cast<const char*>(to), static_cast<size_t>(n));
  });
  text.swap(out);
}

void append_char(std::string& out, utf8proc_int32_t code) {
  utf8proc_uint8_t bytes[4];
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(utf8proc_encode_char(code, bytes)));
}

/// Character by character, so that a final sigma is as any other.
void to_lowercase(std::string& text) {
  std::string out;
  out.reserve(text.size());
  const char *p = text.data(), *const end = p + text.size();
  while (p < end) {
    const Char c = next_char(p, end);
    if (!c.valid)
      out.append(p, static_cast<size_t>(c.bytes));
    else if (c.code == 0x130)  // the only one of two characters
      out += "i\xcc\x87";
    else
      append_char(out, utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code)));
    p += c.bytes;
  }
  text.swap(out);
}

/// A file from outside may say: each letter becomes a thousand.
void check_growth(size_t bytes, size_t most) {
  if (bytes > most)
    fail(ExitCode::data,
         "the normalizer makes a text longer than {} bytes, 64 for each of its own and 64 KiB", most);
}

void replace(std::string& text, ReplaceStep& step, size_t most) {
  std::string out;
  size_t from = 0, done = 0;
  Regex::Match m;
  while (from <= text.size() && step.pattern.next(text, from, m)) {
    out.append(text, done, m.begin - done);
    out += step.text;
    check_growth(out.size(), most);
    done = m.end;
    from = m.end > m.begin ? m.end : m.end + 1;
    while (from < text.size() && from > m.end && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80)
      ++from;
  }
  if (done == 0 && out.empty()) return;
  out.append(text, done);
  text.swap(out);
}

void replace_text(std::string& text, const ReplaceTextStep& step, size_t most) {
  size_t at = text.find(step.pattern);
  if (at == std::string::npos) return;
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  size_t done = 0;
  for (; at != std::string::npos; at = text.find(step.pattern, done)) {
    out.append(text, done, at - done);
    out += step.text;
    check_growth(out.size(), most);
    done = at + step.pattern.size();
  }
  out.append(text, done);
  text.swap(out);
}

void strip(std::string& text, const StripStep& step) {
  const uint8_t* table = char_classes();
  const char *begin = text.data(), *end = begin + text.size();
  const auto space_at = [&](const char* p) {
    const Char c = next_char(p, end);
    return c.valid && table[c.code] == kS ? c.bytes : 0;
  };
  if (step.left)
    while (begin < end && space_at(begin)) begin += space_at(begin);
  while (step.right && begin < end) {
    const char* p = end - 1;
    while (p > begin && end - p < 4 && (static_cast<unsigned char>(*p) & 0xC0) == 0x80) --p;
    if (space_at(p) != end - p) break;
    end = p;
  }
  text = std::string(begin, static_cast<size_t>(end - begin));
}

}  // namespace

void Normalizer::apply(std::string& text) {
  const size_t most = 64 * text.size() + (64 << 10);
  for (Step& step : steps_) {
    if (text.empty()) return;
    check_growth(text.size(), most);
    if (const auto* form = std::get_if<UnicodeForm>(&step))
      to_form(text, *form);
    else if (std::holds_alternative<LowercaseStep>(step))
      to_lowercase(text);
    else if (const auto* p = std::get_if<PrependStep>(&step))
      text.insert(0, p->text);
    else if (auto* r = std::get_if<ReplaceStep>(&step))
      replace(text, *r, most);
    else if (const auto* plain = std::get_if<ReplaceTextStep>(&step))
      replace_text(text, *plain, most);
    else
      strip(text, std::get<StripStep>(step));
  }
}

bool Normalizer::by_words() const {
  return std::all_of(steps_.begin(), steps_.end(), [](const Step& s) {
    return std::holds_alternative<UnicodeForm>(s) || std::holds_alternative<LowercaseStep>(s);
  });
}

}  // namespace ltrain::data
