// The recipe that tests of plans change.
#pragma once
#include "runtime/recipe/recipe.h"

namespace ltrain::test {

inline Recipe tiny_recipe(int ranks, const std::vector<std::string>& overrides = {}, int on_host = 0) {
  return resolve(
      parse_recipe("name: tiny\ndevice: cpu\n"
                   "model: {architecture: llama, vocab_size: 257, hidden_size: 48, intermediate_size: 80, "
                   "num_hidden_layers: 3, num_attention_heads: 4, max_position_embeddings: 64}\n"
                   "data: {seq_length: 32}\n"
                   "train: {micro_batch_size: 1, global_batch_size: 24, train_steps: 100}\n"
                   "launch: {threads_per_rank: 2}\n",
                   "tiny.yaml", overrides),
      ranks, on_host);
}

}  // namespace ltrain::test
