// Search for tokens that are matched verbatim in the text before it is split or merged ("added_tokens").
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/regex.h"

namespace ltrain::data {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< match only without an adjacent word character
  bool lstrip = false;       ///< match includes whitespace before the token
  bool rstrip = false;       ///< match includes whitespace after the token
  bool normalized = false;   ///< searched in the normalized text
  bool special = false;
};

/// Finds tokens in a text, from left to right and the longest match first. Not thread-safe; each thread needs
/// its own copy.
class AddedTokenSearch {
 public:
  AddedTokenSearch();
  /// Adds a token. `content`: text to search for, which may differ from the token's own (for example
  /// normalized).
  void add(const AddedToken& token, const std::string& content);
  bool empty() const { return tokens_.empty(); }
  /// True: a special token that is found is text. The search still goes on behind it, so tokens inside it are
  /// not found.
  void set_split_special_tokens(bool split) { split_special_tokens_ = split; }

  struct Part {
    size_t begin, end;  ///< bytes of the text
    int32_t id;         ///< -1: text
    bool special;       ///< a special token
  };
  /// Says whether bytes [begin, end) of the text may be a special token.
  using Allowed = std::function<bool(size_t begin, size_t end)>;
  /// Splits the text into parts, in order. Text parts are never empty. Special tokens that `allowed` refuses
  /// are text; empty: all are allowed.
  void split(std::string_view text, std::vector<Part>& parts, const Allowed& allowed = {});

 private:
  struct Node {
    std::vector<std::pair<unsigned char, int32_t>> next;
    int32_t token = -1;  // index in tokens_
  };
  int32_t longest(std::string_view text, size_t at, size_t& end) const;
  bool word_before(std::string_view text, size_t at);
  bool word_after(std::string_view text, size_t at);

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  int32_t first_[256];  // node of each first byte, or -1
  bool split_special_tokens_ = false;
  Regex word_;
};

}  // namespace ltrain::data
