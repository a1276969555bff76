// Regular expressions of tokenizer files, run by PCRE2.
//
// The files are written for other engines (Oniguruma, Rust's regex). A pattern is translated construct by
// construct. Constructs with the same meaning are kept. \s, \d and \w become the Unicode properties that
// those engines use. Constructs with a possibly different meaning are refused. \p{L} and similar classes
// follow PCRE2's version of Unicode.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace ltrain::data {

/// Not thread-safe. Copies share the compiled pattern.
class Regex {
 public:
  /// Throws Error (data) with `where`, the pattern and the construct, if the pattern is invalid or not
  /// supported.
  Regex(const std::string& pattern, const std::string& where);
  /// Returns a regex that matches exactly this text.
  static Regex of_text(const std::string& text, const std::string& where);

  struct Match {
    size_t begin = 0, end = 0;  ///< bytes
  };
  /// Finds the next match that starts at `from` or later; false: none. Invalid UTF-8 bytes match nothing.
  /// Throws Error (data) if the pattern exceeds its limits of time or memory.
  bool next(std::string_view text, size_t from, Match& match);

 private:
  struct Compiled;
  struct Scratch;
  explicit Regex(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  std::shared_ptr<const Compiled> compiled_;
  std::shared_ptr<Scratch> scratch_;  // created by the first match; never shared

 public:
  Regex(const Regex& other) : compiled_(other.compiled_) {}
  Regex& operator=(const Regex&) = delete;
};

/// Translates a pattern for PCRE2 (see above). Errors as in the constructor.
std::string to_pcre2(std::string_view pattern, const std::string& where);

}  // namespace ltrain::data
