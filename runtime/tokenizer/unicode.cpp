#include "runtime/tokenizer/unicode.h"

#include <algorithm>
#include <vector>

namespace ltrain::data {

const uint8_t* char_classes() {
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> t(0x110000, kOther);
    for (int i = 0; i < kUnicodeRangeCount; ++i)
      std::fill(t.begin() + kUnicodeRanges[i].first, t.begin() + kUnicodeRanges[i].last + 1,
                kUnicodeRanges[i].cls);
    return t;
  }();
  return table.data();
}

}  // namespace ltrain::data
