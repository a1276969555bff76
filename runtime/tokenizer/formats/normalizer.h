// Normalization of text before it is split (the "normalizer" of a tokenizer.json): a list of steps.
#pragma once
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/tokenizer/regex.h"

namespace ltrain::data {

enum class UnicodeForm : uint8_t { nfc, nfd, nfkc, nfkd };

struct LowercaseStep {};
struct PrependStep {
  std::string text;
};
struct ReplaceStep {
  Regex pattern;
  std::string text;
};
/// Like ReplaceStep, for a literal pattern, in UTF-8 and not empty.
struct ReplaceTextStep {
  std::string pattern, text;
};
struct StripStep {
  bool left = false, right = false;
};

/// Not thread-safe; each thread needs its own copy.
class Normalizer {
 public:
  using Step = std::variant<UnicodeForm, LowercaseStep, PrependStep, ReplaceStep, ReplaceTextStep, StripStep>;
  Normalizer() = default;
  explicit Normalizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  bool empty() const { return steps_.empty(); }
  /// Applies all steps to the text. Invalid UTF-8 bytes are not changed.
  void apply(std::string& text);
  /// Returns whether the parts of a text cut between a non-space character and an ASCII space normalize like
  /// the full text.
  bool by_words() const;

 private:
  std::vector<Step> steps_;
};

}  // namespace ltrain::data
