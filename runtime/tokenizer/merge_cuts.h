// Places in a text that no merge can go over: what stands between two of them is merged, and remembered,
// apart.
#pragma once
#include <bitset>
#include <cstdint>
#include <string_view>

namespace ltrain::data {

/// Merges join a left token's last byte to a right token's first one. Two bytes that no merge joins are a
/// cut, whatever stands around them. For models in which each character's ids depend on that character alone:
/// a run of unknown characters that becomes one token would go over a cut.
class MergeCuts {
 public:
  /// A merge of tokens that end and begin so; neither is empty.
  void add(std::string_view left, std::string_view right) { joined_.set(place(left.back(), right.front())); }

  /// Calls `use` with each part of the text; they follow each other, and none is empty. Characters stay
  /// whole.
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
