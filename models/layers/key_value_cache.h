// Keys and values of the tokens that a model has read: the next token then costs its own row alone.
#pragma once
#include <vector>

#include "kernels/tensor/tensor.h"

namespace ltrain {

/// Of one text.
struct KeyValueCache {
  int64_t length = 0;          ///< tokens whose keys and values are there
  int64_t capacity = 0;        ///< tokens that there is room for
  std::vector<Tensor> layers;  ///< (capacity, 2 * kv_heads * head_dim): keys, rotated, and values
};

/// Consecutive rows of a forward, which go on with one text.
struct TextRows {
  KeyValueCache* cache = nullptr;
  int64_t count = 0;
};

}  // namespace ltrain
