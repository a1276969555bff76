// SentencePiece's normalization of text: characters are replaced by the model's table, and spaces are
// removed, added and written as U+2581.
#pragma once
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/formats/piece_trie.h"
#include "runtime/tokenizer/formats/sentencepiece_model.h"

namespace ltrain::data {

/// A "precompiled_charsmap": byte sequences and their replacements. It consists of a double array of
/// Darts-clone (Yata et al. 2007, "A compact static double-array keeping character codes") and NUL-terminated
/// strings.
class CharsMap {
 public:
  CharsMap() = default;
  /// Throws Error (data) for an invalid table.
  CharsMap(std::string_view file, const std::string& name);

  struct Match {
    size_t bytes = 0;  ///< matched bytes of the text; 0: no match
    const char* becomes = nullptr;
  };
  /// The longest entry at the start of `text`.
  Match longest(std::string_view text) const;
  /// Returns whether an ASCII character stays unchanged before the ASCII character `next`.
  bool plain(unsigned char c, unsigned char next) const { return plain_[static_cast<size_t>(c) << 7 | next]; }
  /// Returns whether an entry has an ASCII space after its first byte.
  bool has_inner_space() const { return has_inner_space_; }

 private:
  static constexpr uint32_t kRoot = 0, kNone = UINT32_MAX;
  /// Index of the node's edges; kNone outside the array.
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

  /// Normalizes `text` into `out`, which is overwritten. Throws Error (data) if the table makes a text many
  /// times longer.
  void apply(std::string_view text, std::string& out) const;
  /// Returns whether the parts of a text, cut between a character other than a space or U+2581 and an ASCII
  /// space, normalize like the full text.
  bool by_words() const;

 private:
  struct Prefix {
    size_t bytes;  // bytes of the text
    std::string_view becomes;
  };
  Prefix prefix(std::string_view text) const;

  CharsMap map_;
  PieceTrie user_defined_;  // pieces that stay unchanged
  bool mapped_ = false, user_space_ = false;
  bool dummy_prefix_, remove_spaces_;
  std::string space_;
};

}  // namespace ltrain::data
