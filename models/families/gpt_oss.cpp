// gpt-oss (arXiv:2508.10925).
#include "models/families/llama_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> gpt_oss_keys() {
  std::vector<HfKey> rows = moe_like_keys({201088, 2880, 2880, 36, 64, 8, 131072, 1e-5, 1.5e5},
                                          {128, 4, "num_local_experts", "num_experts"});
  set_window_defaults(rows, 128);
  std::erase_if(rows,
                [](const HfKey& key) { return key.name == "attention_bias" || key.name == "hidden_act"; });
  rows.push_back(hf_required("hidden_act", {"silu", "swish"}, "the feed-forward's activation"));
  rows.push_back(hf_required("attention_bias", {true}, "biases of attention's projections"));
  rows.push_back(hf_alias("experts_per_token", "moe.top_k"));
  rows.push_back(hf_fixed("norm_topk_prob", "moe.router.norm_topk_prob", true,
                          "weights of the chosen experts alone, which sum to 1"));
  rows.push_back(hf_required("swiglu_limit", {7.0}, "where gate and up are clamped"));
  rows.push_back(hf_required("swiglu_alpha", {1.702}, "the gate's slope"));
  add_harmless(rows, "written by its authors, and not read by transformers' class",
               {"initial_context_length"});
  for (HfKey& key : rows) {
    if (key.name != "head_dim") continue;
    key.missing = 64;
    key.null_derives = false;
  }
  return rows;
}

}  // namespace

Family gpt_oss_family() {
  Family f;
  f.name = "gpt_oss";
  f.hf_class = "GptOssForCausalLM";
  f.summary =
      "mixtral with attention sinks, a window in every other layer, biases of attention, router and experts, "
      "and a "
      "clamped SwiGLU.";
  f.traits.attention_sinks = true;
  f.traits.qkv_bias = f.traits.attention_output_bias = true;
  f.traits.feed_forward = FeedForward::clamped_swiglu;
  f.traits.router_bias = f.traits.expert_bias = true;
  f.names.sinks = "sinks";
  f.names.router = "router";
  f.windows = WindowLayers::but_every_nth;
  f.experts = Experts::always;
  f.defaults.full_attention_interval = 2;
  f.defaults.rope_theta = 1.5e5;
  f.defaults.num_experts = 128;
  f.defaults.top_k = 4;
  f.hf_layout.stacked_experts = true;
  f.hf_default_rope =
      R"({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,)"
      R"( "original_max_position_embeddings": 4096})";
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(gpt_oss_keys());
  return f;
}

}  // namespace ltrain
