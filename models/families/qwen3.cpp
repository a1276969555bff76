// Qwen3 without experts (arXiv:2505.09388).
#include "models/families/llama_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> qwen3_keys() {
  std::vector<HfKey> rows = llama_like_keys({151936, 4096, 22016, 32, 32, 32, 32768, 1e-6, 1e4});
  set_window_defaults(rows, 4096, false, 28);
  for (HfKey& key : rows)
    if (key.name == "head_dim") {
      key.missing = 128;
      key.null_derives = false;
    }
  allow_attention_bias(rows);
  return rows;
}

}  // namespace

Family qwen3_family() {
  Family f;
  f.name = "qwen3";
  f.hf_class = "Qwen3ForCausalLM";
  f.hf_score_class = "Qwen3ForSequenceClassification";
  f.summary = "llama with norms of each head's queries and keys, and windows.";
  f.traits.query_key_norm = QueryKeyNorm::head;
  f.windows = WindowLayers::last;
  f.attention_biases = true;
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(qwen3_keys());
  return f;
}

}  // namespace ltrain
