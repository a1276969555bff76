// N-grams of words, by which documents that contain evaluation data are found (Brown et al. 2020, Language
// Models are Few-Shot Learners, appendix C).
//
// A word is a run of letters and digits of Unicode, with ASCII letters in lower case. Everything else
// separates words. An n-gram is known by 64 bits of a hash.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::data {

constexpr int64_t kMostNgramWords = 64;

/// Cuts text into words and joins them to n-grams. A text may come in pieces, cut anywhere.
class NgramScanner {
 public:
  /// `n`: words of an n-gram, at least 1.
  explicit NgramScanner(int64_t n);

  /// Calls `each(hash)` for every n-gram that ends in the text so far.
  template <class Each>
  void add(std::string_view text, Each each) {
    rest_.append(text);
    scan(false);
    for (const uint64_t gram : grams_) each(gram);
  }
  /// Ends the text: the next word begins another one.
  template <class Each>
  void finish(Each each) {
    scan(true);
    for (const uint64_t gram : grams_) each(gram);
    words_ = 0;
  }

 private:
  void scan(bool ends);
  void end_word();

  std::string rest_;  // bytes of a character that is not complete
  std::string word_;
  std::vector<uint64_t> last_;  // hashes of the last words, in their order
  int64_t words_ = 0;           // words of the text so far
  std::vector<uint64_t> grams_;
};

/// A set of n-grams. Memory is at most 32 bytes for each.
class NgramSet {
 public:
  explicit NgramSet(int64_t n) : n_(n), slots_(1024) {}

  int64_t n() const { return n_; }
  int64_t size() const { return size_; }
  void insert(uint64_t gram);
  bool contains(uint64_t gram) const { return slots_[slot_of(gram)] != 0; }

 private:
  static uint64_t key(uint64_t gram) { return gram == 0 ? 1 : gram; }
  size_t slot_of(uint64_t gram) const;

  int64_t n_, size_ = 0;
  std::vector<uint64_t> slots_;  // 0: free; a power of two, at most half of them taken
};

}  // namespace ltrain::data
