// Positions in a text that no merge can span. The text between two of them is merged and cached separately.
#pragma once
#include <bitset>
#include <cstdint>
#include <string_view>

namespace ltrain::data {

/// A merge joins the last byte of its left token to the first byte of its right token. A position between two
/// bytes that no merge joins is a cut, independent of the surrounding text. Requires a model in which the ids
/// of each character depend only on that character: a run of unknown characters that becomes one token would
/// span a cut.
class MergeCuts {
 public:
  /// Adds the merge of two tokens, neither of which may be empty.
  void add(std::string_view left, std::string_view right) { joined_.set(place(left.back(), right.front())); }

  /// Calls `use` with each part of the text, in order. Parts are not empty and contain whole characters.
  template <class F>
  void each_part(std::string_view text, F&& use) const {
    size_t begin = 0;
    for (size_t at = 1; at < text.size(); ++at) {
      if (joined_[place(text[at - 1], text[at])] || (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80)
        continue;
      use(text.substr(begin, at - begin));
      begin = at;
    }
    if (begin < text.size()) use(text.substr(begin));
  }

 private:
  static size_t place(char left, char right) {
    return static_cast<size_t>(static_cast<unsigned char>(left)) << 8 | static_cast<unsigned char>(right);
  }
  std::bitset<65536> joined_;
};

}  // namespace ltrain::data
