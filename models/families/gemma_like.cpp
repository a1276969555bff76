#include "models/families/gemma_like.h"

namespace ltrain {

std::vector<HfKey> gemma_like_keys(const LlamaLikeKeys& defaults, int64_t sliding_window) {
  std::vector<HfKey> rows = llama_like_keys(defaults);
  set_window_defaults(rows, sliding_window);
  std::erase_if(rows, [](const HfKey& key) { return key.name == "hidden_act"; });
  rows.push_back(hf_activation("hidden_activation", "gelu_pytorch_tanh"));
  add_harmless(rows, "transformers' class reads hidden_activation in its place", {"hidden_act"});
  add_harmless(rows, "of generation", {"cache_implementation"});
  rows.push_back(hf_required("use_bidirectional_attention", {nullptr, false}, "attention to later tokens"));
  rows.push_back(hf_obeyed("query_pre_attn_scalar", "query_pre_attn_scalar", 256));
  for (HfKey& key : rows) {
    if (key.name == "tie_word_embeddings") key.missing = true;
    if (key.name == "num_key_value_heads") key.null_derives = false;
    if (key.name != "head_dim") continue;
    key.missing = 256;
    key.null_derives = false;
  }
  return rows;
}

Family gemma_like_family() {
  Family f;
  f.traits.norm_placement = NormPlacement::both;
  f.traits.norm_scales_by_one_more = true;
  f.traits.scaled_embedding = true;
  f.traits.feed_forward = FeedForward::geglu;
  f.names.attention_output_norm = "post_attention_layernorm";
  f.names.feed_forward_norm = "pre_feedforward_layernorm";
  f.names.feed_forward_output_norm = "post_feedforward_layernorm";
  f.windows = WindowLayers::but_every_nth;
  f.soft_caps = true;
  f.defaults.tie_word_embeddings = true;
  return f;
}

}  // namespace ltrain
