// Splitting of normalized text into pieces that are merged separately (the "pre_tokenizer" of a
// tokenizer.json): a list of steps.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/tokenizer/regex.h"

namespace ltrain::data {

/// Result for a match of a Split: a separate piece, nothing, a part of the previous or next piece, or one
/// piece with adjacent matches.
enum class SplitBehavior : uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct RegexSplit {
  Regex pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  ///< text outside the matches counts as the match
  /// `local`: cutting the text between a non-space character and an ASCII space does not change matches.
  /// `by_words`: a piece always ends there.
  bool local = false, by_words = false;
};
struct Gpt2Split {};  ///< GPT-2's pattern, without a regex engine
enum class PrependScheme : uint8_t { always, never, first };
struct MetaspaceSplit {
  std::string replacement;  ///< replaces spaces; one character
  PrependScheme prepend = PrependScheme::always;
  bool split = true;  ///< split before each replacement
};
struct PrefixSpace {};  ///< adds a space to a piece that does not start with one

class PreTokenizer {
 public:
  using Step = std::variant<RegexSplit, Gpt2Split, MetaspaceSplit, PrefixSpace>;
  struct Piece {
    size_t begin, end;  ///< bytes of the text; never empty
    bool first;         ///< starts at the beginning of the input
  };
  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  /// Splits `text`, which steps may change. `first`: it is the beginning of the input. Not thread-safe; each
  /// thread needs its own copy.
  void split(std::string& text, bool first, std::vector<Piece>& pieces);
  /// Returns whether the parts of a text cut between a non-space character and an ASCII space have the same
  /// pieces as the full text.
  bool by_words() const;

 private:
  void apply(RegexSplit& step, const std::string& text, std::vector<Piece>& pieces);
  void apply(Gpt2Split& step, const std::string& text, std::vector<Piece>& pieces);
  void apply(MetaspaceSplit& step, std::string& text, std::vector<Piece>& pieces);
  void apply(PrefixSpace& step, std::string& text, std::vector<Piece>& pieces);

  std::vector<Step> steps_;
  struct Span {
    size_t begin, end;
    bool match;
  };
  std::vector<Span> spans_;
  std::vector<Piece> next_;
  std::string changed_;
};

}  // namespace ltrain::data
