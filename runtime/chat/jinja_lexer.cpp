#include "runtime/chat/jinja_lexer.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/chat/jinja_text.h"
#include "runtime/tokenizer/unicode.h"

namespace ltrain::chat {
namespace {

using Type = Token::Type;

/// Line ends become line feeds, and one at the end is dropped.
std::string with_line_feeds(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : source_(with_line_feeds(source)), name_(name) {}

  std::vector<Token> run() {
    if (const size_t valid = valid_utf8(source_); valid != source_.size()) {
      line_ += static_cast<int>(
          std::count(source_.begin(), source_.begin() + static_cast<std::ptrdiff_t>(valid), '\n'));
      fail("expected UTF-8");
    }
    while (at_ < source_.size()) read_data();
    put(Type::end, "");
    return std::move(tokens_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    ltrain::fail(ExitCode::data, "{}:{}: {}", name_, line_, fmt::format(text, std::forward<Args>(args)...));
  }

  Token& put(Type type, std::string text) {
    tokens_.push_back({type, std::move(text), 0, 0, line_});
    return tokens_.back();
  }

  bool here(std::string_view text) const {
    return std::string_view(source_).substr(at_, text.size()) == text;
  }

  void advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    line_starts_ = to > at_ ? source_[to - 1] == '\n' : line_starts_;
    at_ = to;
  }

  size_t after_space(size_t at) const {
    while (at < source_.size()) {
      const data::Char c = data::next_char(source_.data() + at, source_.data() + source_.size());
      if (!python_space(c.code)) break;
      at += static_cast<size_t>(c.bytes);
    }
    return at;
  }

  /// Puts the text before a tag that begins at `tag` and has the sign `sign` ('-', '+' or 0).
  void put_data(size_t tag, char sign, bool may_strip) {
    const std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    size_t end = text.size();
    if (sign == '-') {
      for (size_t begin = 0; begin < end;) {  // the last code point that is not white space
        size_t last = end - 1;
        while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xC0u) == 0x80u) --last;
        if (!python_space(data::next_char(text.data() + last, text.data() + end).code)) break;
        end = last;
      }
    } else if (sign != '+' && may_strip) {
      const size_t line_feed = text.rfind('\n');
      const size_t begin = line_feed == std::string_view::npos ? 0 : line_feed + 1;
      if ((begin > 0 || line_starts_) && after_space(at_ + begin) >= tag) end = begin;
    }
    if (end > 0) put(Type::data, std::string(text.substr(0, end)));
    advance(tag);
  }

  /// Text up to the next tag, and the tag.
  void read_data() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        put(Type::data, source_.substr(at_));
        return advance(source_.size());
      }
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() && (source_[tag + 2] == '-' || source_[tag + 2] == '+')
                          ? source_[tag + 2]
                          : '\0';
    put_data(tag, sign, kind != '{');
    const size_t inside = tag + 2 + (sign ? 1 : 0);
    if (kind == '#') return read_comment(inside);
    if (kind == '%')
      if (const size_t body = raw_begin(inside); body != std::string::npos) return read_raw(body);
    put(kind == '%' ? Type::block_begin : Type::print_begin, "");
    advance(inside);
    read_tag(kind == '%');
  }

  void read_comment(size_t at) {
    const size_t end = source_.find("#}", at);
    if (end == std::string::npos) fail("a comment without its end #}}");
    advance(
        after_end(end > at && (source_[end - 1] == '-' || source_[end - 1] == '+') ? end - 1 : end, true));
  }

  /// Position behind an end such as "-%}" at `at`, with the white space that it removes.
  size_t after_end(size_t at, bool trim) const {
    if (source_[at] == '-') return after_space(at + 3);
    if (source_[at] == '+') return at + 3;
    at += 2;
    return trim && at < source_.size() && source_[at] == '\n' ? at + 1 : at;
  }

  /// Position behind "raw %}" at `at`; npos: another tag.
  size_t raw_begin(size_t at) const {
    at = after_space(at);
    if (source_.compare(at, 3, "raw") != 0) return std::string::npos;
    at = after_space(at + 3);
    if (source_.compare(at, 2, "%}") == 0) return at + 2;
    return source_.compare(at, 3, "-%}") == 0 ? after_space(at + 3) : std::string::npos;
  }

  void read_raw(size_t body) {
    advance(body);
    for (size_t tag = body; (tag = source_.find("{%", tag)) != std::string::npos; tag += 2) {
      size_t at = tag + 2;
      const char sign =
          at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at++] : '\0';
      at = after_space(at);
      if (source_.compare(at, 6, "endraw") != 0) continue;
      at = after_space(at + 6);
      const bool ends = source_.compare(at, 2, "%}") == 0 || source_.compare(at, 3, "-%}") == 0 ||
                        source_.compare(at, 3, "+%}") == 0;
      if (!ends) continue;
      put_data(tag, sign, true);
      return advance(after_end(at, true));
    }
    fail("raw without endraw");
  }

  /// Tokens up to the end of a block or of an expression.
  void read_tag(bool block) {
    std::string open;  // brackets that are open
    for (;;) {
      at_white_space();
      if (at_ >= source_.size()) return;  // the parser says what is missing
      if (open.empty()) {
        const bool signs = source_[at_] == '-' || (block && source_[at_] == '+');
        if (here(block ? "%}" : "}}") || (signs && source_.compare(at_ + 1, 2, block ? "%}" : "}}") == 0)) {
          put(block ? Type::block_end : Type::print_end, "");
          return advance(block || signs ? after_end(at_, block) : at_ + 2);
        }
      }
      read_token(open);
    }
  }

  void at_white_space() { advance(after_space(at_)); }

  void read_token(std::string& open) {
    const char c = source_[at_];
    if (digit(c)) return read_number();
    if (c == '\'' || c == '"') return read_string(c);
    if (c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80)
      return read_name();
    for (const std::string_view op : {"//", "**", "==", "!=", ">=", "<="})
      if (here(op)) {
        put(Type::op, std::string(op));
        return advance(at_ + 2);
      }
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos)
      fail("unexpected character '{}'", printable(std::string_view(source_).substr(at_, 1)));
    const std::string_view brackets = "[](){}";
    if (const size_t which = brackets.find(c); which != std::string_view::npos) {
      if (which % 2 == 0) {
        open += brackets[which + 1];
      } else if (open.empty() || open.back() != c) {
        fail("unexpected '{}'", c);
      } else {
        open.pop_back();
      }
    }
    put(Type::op, std::string(1, c));
    advance(at_ + 1);
  }

  void read_name() {
    const size_t begin = at_;
    size_t end = at_;
    while (end < source_.size()) {
      const data::Char c = data::next_char(source_.data() + end, source_.data() + source_.size());
      const bool part = c.code < 0x80 ? std::isalnum(static_cast<int>(c.code)) || c.code == '_'
                                      : data::char_classes()[c.code] == data::kL;
      if (!part) break;
      end += static_cast<size_t>(c.bytes);
    }
    if (end == begin) fail("unexpected character '{}'", printable(std::string_view(source_).substr(at_, 4)));
    put(Type::name, source_.substr(begin, end - begin));
    advance(end);
  }

  /// Digits with single underscores between them; returns the end.
  size_t digits(size_t at, bool (*good)(char), bool underscore_first = false) const {
    size_t end = at;
    for (;;) {
      const size_t next =
          end < source_.size() && source_[end] == '_' && (end > at || underscore_first) ? end + 1 : end;
      if (next >= source_.size() || !good(source_[next])) return end;
      end = next + 1;
    }
  }

  void read_number() {
    const size_t begin = at_;
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';
    size_t end = digits(begin, digit);
    size_t fraction = end;
    if (fraction + 1 < source_.size() && source_[fraction] == '.' && digit(source_[fraction + 1]))
      fraction = digits(fraction + 1, digit);
    size_t exponent = fraction;
    if (fraction < source_.size() && (source_[fraction] == 'e' || source_[fraction] == 'E')) {
      size_t sign = fraction + 1;
      if (sign < source_.size() && (source_[sign] == '+' || source_[sign] == '-')) ++sign;
      if (sign < source_.size() && digit(source_[sign])) exponent = digits(sign, digit);
    }
    const size_t real = std::max(fraction, exponent);
    if (real > end && !after_dot) {
      put(Type::real, "").real = std::strtod(plain(begin, real).c_str(), nullptr);
      return advance(real);
    }
    read_integer(begin, end);
  }

  std::string plain(size_t begin, size_t end) const {
    std::string text = source_.substr(begin, end - begin);
    std::erase(text, '_');
    return text;
  }

  void read_integer(size_t begin, size_t end) {
    int base = 10;
    if (source_[begin] == '0') {
      const char mark = begin + 1 < source_.size() ? static_cast<char>(source_[begin + 1] | 0x20) : '\0';
      const auto hex = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
      const auto octal = [](char c) { return c >= '0' && c <= '7'; };
      const auto binary = [](char c) { return c == '0' || c == '1'; };
      const auto zero = [](char c) { return c == '0'; };
      base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      const size_t from = base == 10 ? begin : begin + 2;
      end = base == 16  ? digits(from, hex, true)
            : base == 8 ? digits(from, octal, true)
            : base == 2 ? digits(from, binary, true)
                        : digits(from, zero);
      if (end == from) {  // "0x" is a zero and a name
        base = 10;
        end = begin + 1;
      }
    }
    const std::string text = plain(base == 10 ? begin : begin + 2, end);
    int64_t value = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (read.ec != std::errc()) fail("{}: expected an integer below 2^63", printable(text, 40));
    put(Type::integer, "").integer = value;
    advance(end);
  }

  void read_string(char quote) {
    std::string text;
    size_t at = at_ + 1;
    for (;; ++at) {
      if (at >= source_.size()) fail("a string without its end {}", quote);
      if (source_[at] == quote) break;
      if (source_[at] != '\\') {
        text += source_[at];
        continue;
      }
      if (++at >= source_.size()) fail("a string without its end {}", quote);
      at = read_escape(at, text);
    }
    put(Type::text, std::move(text));
    advance(at + 1);
  }

  /// Reads the escape whose letter is at `at`; returns its last byte.
  size_t read_escape(size_t at, std::string& text) const {
    const std::string_view letters = "abfnrtv\\'\"", bytes = "\a\b\f\n\r\t\v\\'\"";
    const char c = source_[at];
    if (const size_t which = letters.find(c); which != std::string_view::npos) {
      text += bytes[which];
      return at;
    }
    if (c == '\n') return at;
    if (c == 'N') fail("\\N{{...}} in a string is not supported; write the character");
    const size_t length = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (length == 0 && !(c >= '0' && c <= '7')) {
      text += '\\';
      text += c;
      return at;
    }
    const size_t begin = length > 0 ? at + 1 : at;
    size_t end = begin;
    const size_t most = length > 0 ? length : 3;
    const auto good = [&](char d) {
      return length > 0 ? std::isxdigit(static_cast<unsigned char>(d)) != 0 : d >= '0' && d <= '7';
    };
    while (end < source_.size() && end - begin < most && good(source_[end])) ++end;
    if (length > 0 && end - begin != length)
      fail("\\{} in a string: expected {} hexadecimal digits", c, length);
    uint32_t code = 0;
    std::from_chars(source_.data() + begin, source_.data() + end, code, length > 0 ? 16 : 8);
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) fail("\\{} in a string: no such character", c);
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else if (code < 0x800) {
      text += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    } else if (code < 0x10000) {
      text += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
               static_cast<char>(0x80 | (code & 63))};
    } else {
      text += {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
               static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
    }
    return end - 1;
  }

  const std::string source_;
  const std::string& name_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  // the text before at_ ends with a line feed, or is empty
};

}  // namespace

std::vector<Token> jinja_tokens(std::string_view source, const std::string& name) {
  return Lexer(source, name).run();
}

}  // namespace ltrain::chat
