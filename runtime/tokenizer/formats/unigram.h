// Segmentation of a text under a unigram model (Kudo 2018, "Subword regularization"): pieces with the largest
// sum of log probabilities.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/formats/piece_trie.h"
#include "runtime/tokenizer/formats/sentencepiece_model.h"

namespace ltrain::data {

/// Const and shared by threads. Sums are in single precision and in SentencePiece's order, so that the pieces
/// agree even if two segmentations are nearly equal.
class Unigram {
 public:
  Unigram() = default;
  explicit Unigram(const SentencepieceModel& model);

  struct Part {
    size_t begin, end;  ///< bytes of the text
    int32_t id;         ///< id of the unknown piece for a character that is not a piece
  };
  /// Buffers of one thread, reused for the next text.
  struct Scratch {
    struct Best {
      float score = 0;
      int32_t from = -1, id = -1;  // bytes before the end; -1: no piece ends here
    };
    std::vector<Best> best;
  };
  /// Appends the pieces of `text`. `scratch` grows to the longest run of overlapping pieces.
  void segment(std::string_view text, Scratch& scratch, std::vector<Part>& parts) const;

 private:
  PieceTrie trie_;
  std::vector<float> scores_;  // index: id
  size_t longest_ = 4;         // bytes of the longest piece or character
  float unk_score_ = 0;
  int32_t unk_ = -1;
};

}  // namespace ltrain::data
