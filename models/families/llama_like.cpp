#include "models/families/llama_like.h"

namespace ltrain {

std::vector<HfKey> llama_like_keys(const LlamaLikeKeys& d) {
  std::vector<HfKey> rows{hf_obeyed("vocab_size", "vocab_size", d.vocab),
                          hf_obeyed("hidden_size", "hidden_size", d.hidden),
                          hf_obeyed("intermediate_size", "intermediate_size", d.intermediate),
                          hf_obeyed("num_hidden_layers", "num_hidden_layers", d.layers),
                          hf_obeyed("num_attention_heads", "num_attention_heads", d.heads),
                          hf_obeyed("num_key_value_heads", "num_key_value_heads", d.kv_heads, true),
                          hf_obeyed("head_dim", "head_dim", nullptr),
                          hf_obeyed("max_position_embeddings", "max_position_embeddings", d.positions),
                          hf_obeyed("rms_norm_eps", "rms_norm_eps", d.eps),
                          hf_obeyed("initializer_range", "initializer_range", 0.02),
                          hf_obeyed("attention_dropout", "attn_pdrop", 0.0),
                          hf_obeyed("tie_word_embeddings", "tie_word_embeddings", false),
                          hf_obeyed("rope_theta", "rope_theta", d.theta)};
  for (const char* section : {"rope_parameters", "rope_scaling"}) {
    const std::string s = section;
    rows.push_back(hf_special(s, "rotary embeddings"));
    rows.push_back(hf_alias(s + ".rope_theta", "rope_theta"));
    rows.push_back(hf_alias(s + ".rope_type", "rope_scaling.rope_type"));
    rows.push_back(hf_alias(s + ".type", "rope_scaling.rope_type"));
    rows.push_back(hf_alias(s + ".factor", "rope_scaling.factor"));
    rows.push_back(hf_alias(s + ".low_freq_factor", "rope_scaling.low_freq_factor"));
    rows.push_back(hf_alias(s + ".high_freq_factor", "rope_scaling.high_freq_factor"));
    rows.push_back(
        hf_alias(s + ".original_max_position_embeddings", "rope_scaling.original_max_position_embeddings"));
    rows.push_back(
        hf_required(s + ".partial_rotary_factor", {1.0, nullptr}, "rotation of a part of each head"));
    for (const char* key : {"beta_fast", "beta_slow", "truncate", "attention_factor", "mscale",
                            "mscale_all_dim", "short_factor", "long_factor"}) {
      rows.push_back(hf_alias(s + "." + key, std::string("rope_scaling.") + key));
      rows.back().null_derives = true;  // same as without the key
    }
  }
  rows.push_back(hf_required("partial_rotary_factor", {1.0, nullptr}, "rotation of a part of each head"));
  rows.push_back(hf_activation("hidden_act", "silu"));
  rows.push_back(hf_required("attention_bias", {false, nullptr}, "biases of attention's projections"));
  rows.push_back(hf_required("mlp_bias", {false, nullptr}, "biases of the feed-forward"));
  rows.push_back(hf_special("sliding_window", "attention to the last tokens alone"));
  rows.push_back(hf_special("use_sliding_window", "whether sliding_window is read"));
  rows.push_back(hf_special("max_window_layers", "which layers have a sliding window"));
  rows.push_back(hf_special("layer_types", "which layers have a sliding window"));
  add_harmless(rows, "the order in which a matmul is added up", {"pretraining_tp"});
  add_common(rows);
  return rows;
}

void allow_attention_bias(std::vector<HfKey>& rows) {
  for (HfKey& key : rows)
    if (key.name == "attention_bias") key = hf_obeyed("attention_bias", "attention_bias", false, true);
}

void set_window_defaults(std::vector<HfKey>& rows, nlohmann::json sliding_window,
                         nlohmann::json use_sliding_window, nlohmann::json max_window_layers) {
  for (HfKey& key : rows) {
    if (key.name == "sliding_window") key.missing = sliding_window;
    if (key.name == "use_sliding_window") key.missing = use_sliding_window;
    if (key.name == "max_window_layers") key.missing = max_window_layers;
  }
}

std::vector<HfKey> moe_like_keys(const LlamaLikeKeys& d, const ExpertKeys& e) {
  std::vector<HfKey> rows = llama_like_keys(d);
  rows.push_back(hf_obeyed(e.name, "moe.num_experts", e.experts));
  rows.push_back(hf_alias(e.other_name, "moe.num_experts"));
  rows.push_back(hf_obeyed("num_experts_per_tok", "moe.top_k", e.top_k));
  rows.push_back(hf_special("output_router_logits", "whether transformers adds the loss for balance", false));
  rows.push_back(hf_special("router_aux_loss_coef", "weight of the loss for balance", e.aux_loss_coef));
  rows.push_back(hf_required("router_jitter_noise", {0.0, nullptr},
                             "noise on what router and experts read; ltrain's model.moe.router.jitter_eps is "
                             "on what the router reads"));
  rows.push_back(hf_required("clip_qkv", {nullptr}, "queries, keys and values that are clamped"));
  rows.push_back(hf_required("scoring_func", {"softmax", nullptr}, "the router's scores"));
  return rows;
}

}  // namespace ltrain
