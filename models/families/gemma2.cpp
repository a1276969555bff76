// Gemma 2 (arXiv:2408.00118).
#include "models/families/llama_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> keys() {
  std::vector<HfKey> rows = llama_like_keys({256000, 2304, 9216, 26, 8, 4, 8192, 1e-6, 1e4});
  set_window_defaults(rows, 4096);
  std::erase_if(rows, [](const HfKey& key) { return key.name == "hidden_act"; });
  rows.push_back(
      hf_required("hidden_activation", {"gelu_pytorch_tanh", "gelu_new"}, "the feed-forward's activation"));
  add_harmless(rows, "transformers' class reads hidden_activation in its place", {"hidden_act"});
  add_harmless(rows, "of generation", {"cache_implementation"});
  rows.push_back(hf_required("use_bidirectional_attention", {nullptr, false}, "attention to later tokens"));
  rows.push_back(hf_obeyed("query_pre_attn_scalar", "query_pre_attn_scalar", 256));
  rows.push_back(hf_number_or_null("attn_logit_softcapping", "attn_logit_softcapping", 50.0));
  rows.push_back(hf_number_or_null("final_logit_softcapping", "final_logit_softcapping", 30.0));
  for (HfKey& key : rows) {
    if (key.name == "tie_word_embeddings") key.missing = true;
    if (key.name == "num_key_value_heads") key.null_derives = false;
    if (key.name != "head_dim") continue;
    key.missing = 256;
    key.null_derives = false;
  }
  return rows;
}

}  // namespace

Family gemma2_family() {
  Family f;
  f.name = "gemma2";
  f.hf_class = "Gemma2ForCausalLM";
  f.summary =
      "llama with GeGLU, norms before and after attention and feed-forward that scale by 1 + weight, a "
      "scaled "
      "embedding, soft-caps of scores and logits, and windows.";
  f.traits.norm_placement = NormPlacement::both;
  f.traits.norm_scales_by_one_more = true;
  f.traits.scaled_embedding = true;
  f.traits.feed_forward = FeedForward::geglu;
  f.names.attention_output_norm = "post_attention_layernorm";
  f.names.feed_forward_norm = "pre_feedforward_layernorm";
  f.names.feed_forward_output_norm = "post_feedforward_layernorm";
  f.windows = WindowLayers::alternating;
  f.soft_caps = true;
  f.defaults.tie_word_embeddings = true;
  f.defaults.attn_logit_softcapping = 50.0;
  f.defaults.final_logit_softcapping = 30.0;
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(keys());
  return f;
}

}  // namespace ltrain
