// What SentencePiece does with text before it looks for pieces: characters become others by the model's
// table, spaces are removed, added and written as U+2581.
#pragma once
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/piece_trie.h"
#include "runtime/tokenizer/sentencepiece_model.h"

namespace ltrain::data {

/// A "precompiled_charsmap": bytes that text has, and what they become. A double array of Darts-clone (Yata
/// et al. 2007, "A compact static double-array keeping character codes"), and strings that end with a NUL.
class CharsMap {
 public:
  CharsMap() = default;
  /// Error (data) for what is none.
  CharsMap(std::string_view file, const std::string& name);

  struct Match {
    size_t bytes = 0;  ///< of the text; 0: nothing
    const char* becomes = nullptr;
  };
  /// The longest of its entries that `text` begins with.
  Match longest(std::string_view text) const;
  /// Does an ASCII character stay what it is where another one follows?
  bool plain(unsigned char c, unsigned char next) const { return plain_[static_cast<size_t>(c) << 7 | next]; }
  /// Has an entry an ASCII space that is not its first byte?
  bool has_inner_space() const { return has_inner_space_; }

 private:
  static constexpr uint32_t kRoot = 0, kNone = UINT32_MAX;
  /// Where the node's edges are; kNone outside of the array.
  uint32_t edges(uint32_t node) const;
  uint32_t step(uint32_t edges, unsigned char byte) const;
  void find_plain();
  void find_inner_space();

  std::vector<uint32_t> units_;
  std::string strings_;
  std::bitset<1 << 14> plain_;
  bool has_inner_space_ = false;
};

class SentencepieceNormalizer {
 public:
  SentencepieceNormalizer(const SentencepieceModel& model, const std::string& name);

  /// `out` is overwritten. Error (data) where the table makes a text many times longer.
  void apply(std::string_view text, std::string& out) const;
  /// Is a normalized text the sum of its parts when it is cut between a character that is neither a space nor
  /// U+2581 and an ASCII space?
  bool by_words() const;

 private:
  struct Prefix {
    size_t bytes;  // of the text
    std::string_view becomes;
  };
  Prefix prefix(std::string_view text) const;

  CharsMap map_;
  PieceTrie user_defined_;  // stay as they are
  bool mapped_ = false, user_space_ = false;
  bool dummy_prefix_, remove_spaces_;
  std::string space_;
};

}  // namespace ltrain::data
