// Keys and values of the tokens that a model has read: the next token then costs its own row alone.
#pragma once
#include <vector>

#include "kernels/tensor/tensor.h"

namespace ltrain {

/// Of one text.
struct KeyValueCache {
  int64_t length = 0;    ///< tokens whose keys and values are there
  int64_t capacity = 0;  ///< tokens that there is room for
  /// Tokens that the whole text will have, as far as known: longrope chooses its angles by the longer of this
  /// and `length`. Kept up to date by TrainProgram; set it before the first rows where it is known earlier.
  int64_t text_length = 0;
  /// (capacity, kv_heads * (head_dim + value_dim)): keys, rotated, and values, of the heads of this rank.
  /// Undefined for layers that another stage has.
  std::vector<Tensor> layers;

  /// Makes room for another text.
  void clear() { length = text_length = 0; }
};

/// Consecutive rows of a forward, which go on with one text.
struct TextRows {
  KeyValueCache* cache = nullptr;
  int64_t count = 0;
};

/// A forward that goes on with texts, in the place of one with a loss.
struct TextForward {
  std::vector<TextRows> texts;  ///< its rows, one text after the other
  /// (n, V) f32 or f64: of rows first_row.. With tensor parallelism the tokens of this rank's part of the
  /// vocabulary, zero elsewhere: summands. Not written where the stage has no head.
  Tensor logits;
  int64_t first_row = 0;
};

}  // namespace ltrain
