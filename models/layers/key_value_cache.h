// Cache of the keys and values of a text's tokens: the next token then costs only its own row.
#pragma once
#include <vector>

#include "kernels/tensor/tensor.h"

namespace ltrain {

/// Cache of one text.
struct KeyValueCache {
  int64_t length = 0;    ///< number of tokens in the cache
  int64_t capacity = 0;  ///< most tokens
  /// Length of the full text, as far as known: longrope chooses its angles by the larger of this and
  /// `length`. TrainProgram updates it; set it before the first rows if it is known earlier.
  int64_t text_length = 0;
  /// (capacity, kv_heads * (head_dim + value_dim)): rotated keys, and values, of this rank's heads. Undefined
  /// for layers of another stage.
  std::vector<Tensor> layers;

  /// Empties the cache for another text.
  void clear() { length = text_length = 0; }
};

/// Consecutive rows of a forward that continue one text.
struct TextRows {
  KeyValueCache* cache = nullptr;
  int64_t count = 0;
};

/// A forward that continues texts, instead of one with a loss.
struct TextForward {
  std::vector<TextRows> texts;  ///< rows of the forward, one text after the other
  /// (n, V) f32 or f64: logits of rows from first_row on. With tensor parallelism, tokens of this rank's part
  /// of the vocabulary, zero elsewhere: summands. Not written if the stage has no head.
  Tensor logits;
  int64_t first_row = 0;
};

}  // namespace ltrain
