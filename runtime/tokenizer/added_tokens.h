// Tokens that are found in the text as they are, before anything is split or merged ("added_tokens").
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/regex.h"

namespace ltrain::data {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< only where no word character is beside it
  bool lstrip = false;       ///< takes the spaces before it with it
  bool rstrip = false;       ///< and those after it
  bool normalized = false;   ///< is looked for in the normalized text
  bool special = false;
};

/// Finds tokens in a text: at each place the longest one, from left to right. Not for several threads at
/// once; copies may be used apart.
class AddedTokenSearch {
 public:
  AddedTokenSearch();
  /// `content` is what is looked for; it may differ from the token's own (it is normalized, for instance).
  void add(const AddedToken& token, const std::string& content);
  bool empty() const { return tokens_.empty(); }
  /// True: a special token that is found is text. The search still goes on behind it, so tokens inside it are
  /// not found.
  void set_split_special_tokens(bool split) { split_special_tokens_ = split; }

  struct Part {
    size_t begin, end;  ///< bytes of the text
    int32_t id;         ///< -1: text
  };
  /// The text as parts, in order; what is text is never empty.
  void split(std::string_view text, std::vector<Part>& parts);

 private:
  struct Node {
    std::vector<std::pair<unsigned char, int32_t>> next;
    int32_t token = -1;  // index of tokens_
  };
  int32_t longest(std::string_view text, size_t at, size_t& end) const;
  bool word_before(std::string_view text, size_t at);
  bool word_after(std::string_view text, size_t at);

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  int32_t first_[256];  // nodes of the first bytes, or -1
  bool split_special_tokens_ = false;
  Regex word_;
};

}  // namespace ltrain::data
