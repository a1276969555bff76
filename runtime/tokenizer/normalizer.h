// What a tokenizer.json does with text before it is split (its "normalizer"): a list of steps.
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
/// The same for a pattern that is a text, in UTF-8 and not empty.
struct ReplaceTextStep {
  std::string pattern, text;
};
struct StripStep {
  bool left = false, right = false;
};

/// Not for several threads at once; copies may be used apart.
class Normalizer {
 public:
  using Step = std::variant<UnicodeForm, LowercaseStep, PrependStep, ReplaceStep, ReplaceTextStep, StripStep>;
  Normalizer() = default;
  explicit Normalizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  bool empty() const { return steps_.empty(); }
  /// The text after all steps. Bytes that are not UTF-8 stay as they are.
  void apply(std::string& text);
  /// Is a text the sum of its parts when it is cut between a character that is no space and an ASCII space?
  bool by_words() const;

 private:
  std::vector<Step> steps_;
};

}  // namespace ltrain::data
