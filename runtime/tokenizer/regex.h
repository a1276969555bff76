// Regular expressions of tokenizer files, run by PCRE2.
//
// The files are written for other engines (Oniguruma, Rust's regex). A pattern is taken over construct by
// construct: what means the same is kept, \s, \d and \w become the Unicode properties that those engines mean
// by them, and what could mean something else is refused. \p{L} and its like are those of PCRE2's version of
// Unicode.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace ltrain::data {

/// Not for several threads at once; copies share the compiled pattern.
class Regex {
 public:
  /// Error (data) that names `where`, the pattern and the construct, for what is no pattern or not supported.
  Regex(const std::string& pattern, const std::string& where);
  /// Matches exactly this text.
  static Regex of_text(const std::string& text, const std::string& where);

  struct Match {
    size_t begin = 0, end = 0;  ///< bytes
  };
  /// The next match that begins at `from` or later; false if there is none. Bytes that are not UTF-8 match
  /// nothing. Error (data) where the pattern needs more than bounded time and memory.
  bool next(std::string_view text, size_t from, Match& match);

 private:
  struct Compiled;
  struct Scratch;
  explicit Regex(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  std::shared_ptr<const Compiled> compiled_;
  std::shared_ptr<Scratch> scratch_;  // made by the first match; never shared

 public:
  Regex(const Regex& other) : compiled_(other.compiled_) {}
  Regex& operator=(const Regex&) = delete;
};

/// The pattern as PCRE2 has to be given it (see above); Error as the constructor's.
std::string to_pcre2(std::string_view pattern, const std::string& where);

}  // namespace ltrain::data
