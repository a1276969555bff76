// The best segmentation of a text under a unigram model (Kudo 2018, "Subword regularization"): the one whose
// pieces have the largest sum of log probabilities.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/piece_trie.h"
#include "runtime/tokenizer/sentencepiece_model.h"

namespace ltrain::data {

/// Const and shared by threads. Sums are in single precision and in the order of SentencePiece, so that
/// pieces are the same where two segmentations are nearly equal.
class Unigram {
 public:
  Unigram() = default;
  explicit Unigram(const SentencepieceModel& model);

  struct Part {
    size_t begin, end;  ///< bytes of the text
    int32_t id;         ///< the unknown piece's for a character that is no piece
  };
  /// Of one thread; kept for the next text.
  struct Scratch {
    struct Best {
      float score = 0;
      int32_t from = -1, id = -1;  // bytes before the end; -1: nothing ends here
    };
    std::vector<Best> best;
  };
  /// Appends the pieces of `text`. Memory of `scratch`: what the longest run of overlapping pieces needs.
  void segment(std::string_view text, Scratch& scratch, std::vector<Part>& parts) const;

 private:
  PieceTrie trie_;
  std::vector<float> scores_;  // by id
  size_t longest_ = 4;         // bytes of a piece or character
  float unk_score_ = 0;
  int32_t unk_ = -1;
};

}  // namespace ltrain::data
