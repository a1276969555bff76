// OLMo 2 (arXiv:2501.00656).
#include "models/families/llama_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> olmo2_keys() {
  std::vector<HfKey> rows = llama_like_keys({50304, 4096, 11008, 32, 32, nullptr, 2048, 1e-5, 1e4});
  allow_attention_bias(rows);
  return rows;
}

}  // namespace

Family olmo2_family() {
  Family f;
  f.name = "olmo2";
  f.hf_class = "Olmo2ForCausalLM";
  f.hf_score_class = "Olmo2ForSequenceClassification";
  f.summary = "llama with norms after attention and feed-forward, and norms of all queries and of all keys.";
  f.traits.norm_placement = NormPlacement::after;
  f.traits.query_key_norm = QueryKeyNorm::projection;
  f.names.attention_norm = "post_attention_layernorm";
  f.names.feed_forward_norm = "post_feedforward_layernorm";
  f.attention_biases = true;
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(olmo2_keys());
  return f;
}

}  // namespace ltrain
