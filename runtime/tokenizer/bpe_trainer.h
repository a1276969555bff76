// Training of byte-pair merges (Sennrich et al. 2016): the most frequent adjacent pair becomes a token,
// repeatedly. The result is that of Hugging Face's BpeTrainer for the same pieces.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ltrain::data {

/// Number of occurrences of each piece of text. The texts are stored one after another in one buffer.
class PieceCounts {
 public:
  PieceCounts() : slots_(1 << 10) {}
  void add(std::string_view piece, int64_t count);
  void add(const PieceCounts& others);
  /// Removes the least frequent pieces until `bytes()` is at most `most`. Returns the number of removed
  /// pieces.
  int64_t keep(size_t most);

  size_t size() const { return size_; }
  /// Bytes of this table and of the symbols that training makes from its text.
  size_t bytes() const { return text_.size() * (1 + sizeof(int32_t)) + slots_.size() * sizeof(Slot); }
  size_t text_bytes() const { return text_.size(); }
  /// Calls `use(piece, count)` for each piece.
  template <class F>
  void each(F&& use) const {
    for (const Slot& s : slots_)
      if (s.count > 0) use(piece(s), s.count);
  }

 private:
  struct Slot {
    uint64_t begin = 0;
    uint32_t bytes = 0, hash = 0;
    int64_t count = 0;  // 0: free
  };
  std::string_view piece(const Slot& s) const { return std::string_view(text_).substr(s.begin, s.bytes); }
  void grow();

  std::string text_;
  std::vector<Slot> slots_;  // open addressing; the size is a power of two
  size_t size_ = 0;
};

struct BpeTraining {
  std::vector<std::string>
      tokens;  ///< index: id; written as in a byte-level vocabulary: special tokens, bytes, merged tokens
  std::vector<std::pair<int32_t, int32_t>> merges;  ///< index: rank
};

/// Trains until there are `vocab_size` tokens, including special tokens and bytes, or until no pair occurs
/// `min_frequency` times. Of equally frequent pairs the one with the lower ids comes first.
/// `progress(tokens)` is called from time to time.
BpeTraining train_bpe(const PieceCounts& pieces, const std::vector<std::string>& special_tokens,
                      int64_t vocab_size, int64_t min_frequency,
                      const std::function<void(int64_t)>& progress = {});

}  // namespace ltrain::data
