#include "runtime/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>

#include "base/error.h"
#include "base/printable.h"

namespace ltrain::data {
namespace {

constexpr size_t kMaxPattern = 1 << 16;     // bytes
constexpr uint32_t kMatchLimit = 50000000;  // steps of one match
constexpr uint32_t kHeapLimit = 64 << 10;   // KiB
constexpr size_t kJitStack = 8 << 20;       // bytes, at most

/// Translates a pattern one construct at a time.
class Translation {
 public:
  Translation(std::string_view pattern, const std::string& where) : text_(pattern), where_(where) {}

  std::string run() {
    if (text_.size() > kMaxPattern) refuse("longer than 65536 bytes", "");
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\\')
        escape(false);
      else if (c == '[')
        char_class();
      else if (c == '(')
        group();
      else if (c == '^' || c == '$')
        refuse("a line's or the text's begin and end differ between engines", std::string(1, c));
      else if (c == '{')
        bounds();
      else
        take(1);
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view why, const std::string& what) const {
    fail(ExitCode::data, "{}: the pattern \"{}\": {}{}{}; not supported", where_, printable(text_, 200),
         what.empty() ? "" : "\"" + printable(what, 40) + "\" at byte " + std::to_string(at_) + ": ", why,
         "");
  }

  void take(size_t bytes) {
    out_ += text_.substr(at_, bytes);
    at_ += bytes;
  }

  void put(std::string_view translated, size_t bytes) {
    out_ += translated;
    at_ += bytes;
  }

  void escape(bool in_class) {
    if (at_ + 1 >= text_.size()) refuse("nothing follows it", "\\");
    const char c = text_[at_ + 1];
    // Word characters of Unicode Technical Standard 18, except U+200C and U+200D.
    constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
    switch (c) {
      case 's':
        return put("\\p{White_Space}", 2);
      case 'S':
        return put("\\P{White_Space}", 2);
      case 'd':
        return put("\\p{Nd}", 2);
      case 'D':
        return put("\\P{Nd}", 2);
      case 'w':
        return put(in_class ? std::string(kWord) : "[" + std::string(kWord) + "]", 2);
      case 'W':
        if (in_class) refuse("inside [...]", "\\W");
        return put("[^" + std::string(kWord) + "]", 2);
      case 'p':
      case 'P':
        return property();
      case 'r':
      case 'n':
      case 't':
      case 'f':
        return take(2);
      case 'x':
        return hexadecimal('x');
      case 'u':
        return hexadecimal('u');
      default:
        if (std::ispunct(static_cast<unsigned char>(c)) || c == ' ') return take(2);
        refuse("this escape", "\\" + std::string(1, c));
    }
  }

  /// \p{L}, \p{Lu}, \p{Han}, \P{..}, \p{^..}: categories and scripts have the same meaning.
  void property() {
    size_t end = at_ + 2;
    if (end < text_.size() && text_[end] != '{') {
      if (!std::isupper(static_cast<unsigned char>(text_[end]))) refuse("no property", "\\p");
      return take(3);
    }
    end = text_.find('}', at_);
    if (end == std::string_view::npos || end - at_ > 40) refuse("no property", "\\p");
    for (size_t i = at_ + 3; i < end; ++i)
      if (!std::isalnum(static_cast<unsigned char>(text_[i])) && text_[i] != '_' &&
          !(i == at_ + 3 && text_[i] == '^'))
        refuse("no property", std::string(text_.substr(at_, end + 1 - at_)));
    take(end + 1 - at_);
  }

  /// \xHH, \x{H..}, \uHHHH
  void hexadecimal(char kind) {
    const bool braces = kind == 'x' && text_.substr(at_ + 2).starts_with('{');
    const size_t begin = at_ + 2 + braces;
    size_t end = begin;
    const size_t most = braces ? 6 : kind == 'u' ? 4 : 2;
    while (end < text_.size() && end - begin < most && std::isxdigit(static_cast<unsigned char>(text_[end])))
      ++end;
    const bool whole = braces ? end > begin && end < text_.size() && text_[end] == '}' : end - begin == most;
    if (!whole) refuse("no code point", std::string(text_.substr(at_, 8)));
    const std::string digits(text_.substr(begin, end - begin));
    put("\\x{" + digits + "}", end + braces - at_);
  }

  void char_class() {
    take(1);
    if (at_ < text_.size() && text_[at_] == '^') take(1);
    if (at_ < text_.size() && text_[at_] == ']') refuse("an empty class, or one with ] as its first", "[]");
    while (at_ < text_.size() && text_[at_] != ']') {
      const char c = text_[at_];
      if (c == '\\')
        escape(true);
      else if (c == '[')
        refuse("a class inside a class; write \\[ for the character", "[");
      else if (text_.substr(at_).starts_with("&&") || text_.substr(at_).starts_with("--") ||
               text_.substr(at_).starts_with("~~"))
        refuse("arithmetic of classes", std::string(text_.substr(at_, 2)));
      else
        take(1);
    }
    if (at_ == text_.size()) refuse("[ without ]", "");
    take(1);
  }

  void group() {
    const std::string_view rest = text_.substr(at_);
    if (!rest.starts_with("(?")) return take(1);
    for (const std::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"})
      if (rest.starts_with(known)) return take(known.size());
    refuse("this kind of group", std::string(rest.substr(0, 4)));
  }

  /// {n}, {n,}, {n,m}. A following ? is accepted. A following + is refused, because it is possessive only in
  /// some engines.
  void bounds() {
    size_t end = at_ + 1;
    while (end < text_.size() && (std::isdigit(static_cast<unsigned char>(text_[end])) || text_[end] == ','))
      ++end;
    if (end == at_ + 1 || end >= text_.size() || text_[end] != '}' || text_[at_ + 1] == ',')
      refuse("not {n}, {n,} or {n,m}; write \\{ for the character", "{");
    if (end + 1 < text_.size() && text_[end + 1] == '+') refuse("possessive for some engines only", "}+");
    take(end + 1 - at_);
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
  std::string out_;
};

std::string message_of(int code) {
  PCRE2_UCHAR text[160];
  if (pcre2_get_error_message(code, text, sizeof text) < 0) return "error " + std::to_string(code);
  return reinterpret_cast<const char*>(text);
}

template <auto Free>
struct Freer {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};

}  // namespace

struct Regex::Compiled {
  std::string pattern, where;
  std::string text;  // literal text of of_text(), matched without PCRE2
  std::unique_ptr<pcre2_code, Freer<pcre2_code_free>> code;
};

struct Regex::Scratch {
  std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>> context{
      pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(32 << 10, kJitStack, nullptr)};
  std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>> data;

  explicit Scratch(const pcre2_code* code) : data(pcre2_match_data_create_from_pattern(code, nullptr)) {
    if (!context || !data) throw std::bad_alloc();
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimit);
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

std::string to_pcre2(std::string_view pattern, const std::string& where) {
  return Translation(pattern, where).run();
}

Regex::Regex(const std::string& pattern, const std::string& where) {
  const std::string translated = to_pcre2(pattern, where);
  auto compiled = std::make_shared<Compiled>();
  compiled->pattern = pattern;
  compiled->where = where;
  int error = 0;
  PCRE2_SIZE at = 0;
  compiled->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr));
  if (!compiled->code)
    fail(ExitCode::data, "{}: the pattern \"{}\": {} (at byte {} of \"{}\")", where, printable(pattern, 200),
         message_of(error), at, printable(translated, 200));
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);  // without JIT, PCRE2 interprets
  compiled_ = std::move(compiled);
}

Regex Regex::of_text(const std::string& text, const std::string& where) {
  auto compiled = std::make_shared<Compiled>();
  compiled->pattern = compiled->text = text;
  compiled->where = where;
  return Regex(std::move(compiled));
}

bool Regex::next(std::string_view text, size_t from, Match& match) {
  if (!compiled_->text.empty()) {
    const size_t at = text.find(compiled_->text, from);
    if (at == std::string_view::npos) return false;
    match = {at, at + compiled_->text.size()};
    return true;
  }
  if (!scratch_) scratch_ = std::make_shared<Scratch>(compiled_->code.get());
  const int found = pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                from, 0, scratch_->data.get(), scratch_->context.get());
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0)
    fail(ExitCode::data, "{}: the pattern \"{}\" gave up on a text of {} bytes at byte {}: {}",
         compiled_->where, printable(compiled_->pattern, 200), text.size(), from, message_of(found));
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(scratch_->data.get());
  match = {range[0], range[1]};
  return true;
}

}  // namespace ltrain::data
