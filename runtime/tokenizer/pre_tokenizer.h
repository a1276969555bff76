// How a tokenizer.json divides normalized text into the pieces that are merged apart (its "pre_tokenizer"): a
// list of steps.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/tokenizer/regex.h"

namespace ltrain::data {

/// What becomes of a match of a Split: a piece, nothing, a part of the piece before or after, or one with its
/// neighbours that match.
enum class SplitBehavior : uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct RegexSplit {
  Regex pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  ///< what does not match counts as the match
  /// May the text be cut between a character that is no space and an ASCII space without another match? And
  /// is there always an end of a piece?
  bool local = false, by_words = false;
};
struct Gpt2Split {};  ///< GPT-2's pattern, without a regular expression
enum class PrependScheme : uint8_t { always, never, first };
struct MetaspaceSplit {
  std::string replacement;  ///< of spaces; one character
  PrependScheme prepend = PrependScheme::always;
  bool split = true;  ///< before each replacement
};
struct PrefixSpace {};  ///< a space before a piece that has none

class PreTokenizer {
 public:
  using Step = std::variant<RegexSplit, Gpt2Split, MetaspaceSplit, PrefixSpace>;
  struct Piece {
    size_t begin, end;  ///< bytes of the text; never empty
    bool first;         ///< begins where the input begins
  };
  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  /// Pieces of `text`, which steps may change. `first`: the input begins with it. Not for several threads at
  /// once; copies may be used apart.
  void split(std::string& text, bool first, std::vector<Piece>& pieces);
  /// Are the pieces of a text those of its parts when it is cut between a character that is no space and an
  /// ASCII space?
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
