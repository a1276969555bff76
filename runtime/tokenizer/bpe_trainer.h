// Learns byte-pair merges (Sennrich et al. 2016): again and again the pair of neighbours that is there most
// often becomes a token. What comes out is what Hugging Face's BpeTrainer gives for the same pieces.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ltrain::data {

/// How often each piece of text is there. Pieces lie behind one another in one buffer.
class PieceCounts {
 public:
  PieceCounts() : slots_(1 << 10) {}
  void add(std::string_view piece, int64_t count);
  void add(const PieceCounts& others);
  /// Leaves out those that are there least often, until `bytes()` is at most `most`; returns how many.
  int64_t keep(size_t most);

  size_t size() const { return size_; }
  /// Of this table, and of the symbols that training makes of its text.
  size_t bytes() const { return text_.size() * (1 + sizeof(int32_t)) + slots_.size() * sizeof(Slot); }
  size_t text_bytes() const { return text_.size(); }
  /// Calls `use(piece, count)`.
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
  std::vector<Slot> slots_;  // open addressing, a power of two
  size_t size_ = 0;
};

struct BpeTraining {
  std::vector<std::string>
      tokens;  ///< by id, as a byte-level vocabulary writes them: special tokens, bytes, merged
  std::vector<std::pair<int32_t, int32_t>> merges;  ///< by rank
};

/// Tokens until there are `vocab_size`, special ones and bytes among them, or until no pair is there
/// `min_frequency` times. Of pairs that are there equally often the one with the lower ids goes first.
/// `progress(tokens)` is called now and then.
BpeTraining train_bpe(const PieceCounts& pieces, const std::vector<std::string>& special_tokens,
                      int64_t vocab_size, int64_t min_frequency,
                      const std::function<void(int64_t)>& progress = {});

}  // namespace ltrain::data
