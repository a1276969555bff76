#include "runtime/data/ngrams.h"

#include <xxhash.h>

#include <algorithm>

#include "base/error.h"
#include "runtime/tokenizer/unicode.h"

namespace ltrain::data {

NgramScanner::NgramScanner(int64_t n) : last_(static_cast<size_t>(n)) {
  LT_CHECK(n >= 1, "expected n-grams of at least 1 word, got {}", n);
}

void NgramScanner::scan(bool ends) {
  grams_.clear();
  const uint8_t* classes = char_classes();
  const char *at = rest_.data(), *end = at + rest_.size();
  while (at < end) {
    const Char c = next_char(at, end);
    if (!c.valid && !ends && end - at < 4) break;  // the character may go on in the next piece
    if (c.valid && (classes[c.code] == kL || classes[c.code] == kN)) {
      if (c.code >= 'A' && c.code <= 'Z')
        word_ += static_cast<char>(c.code - 'A' + 'a');
      else
        word_.append(at, static_cast<size_t>(c.bytes));
    } else {
      end_word();
    }
    at += c.bytes;
  }
  rest_.erase(0, static_cast<size_t>(at - rest_.data()));
  if (ends) end_word();
}

void NgramScanner::end_word() {
  if (word_.empty()) return;
  std::rotate(last_.begin(), last_.begin() + 1, last_.end());
  last_.back() = XXH3_64bits(word_.data(), word_.size());
  word_.clear();
  if (++words_ >= static_cast<int64_t>(last_.size()))
    grams_.push_back(XXH3_64bits(last_.data(), last_.size() * sizeof(uint64_t)));
}

size_t NgramSet::slot_of(uint64_t gram) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = key(gram) & mask;
  while (slots_[slot] != 0 && slots_[slot] != key(gram)) slot = (slot + 1) & mask;
  return slot;
}

void NgramSet::insert(uint64_t gram) {
  if (2 * (size_ + 1) > static_cast<int64_t>(slots_.size())) {
    std::vector<uint64_t> before(2 * slots_.size());
    std::swap(before, slots_);
    for (const uint64_t one : before)
      if (one != 0) slots_[slot_of(one)] = one;
  }
  uint64_t& slot = slots_[slot_of(gram)];
  size_ += slot == 0;
  slot = key(gram);
}

}  // namespace ltrain::data
