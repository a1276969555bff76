// Qwen3 with experts (arXiv:2505.09388).
#include "models/families/llama_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> qwen3_moe_keys() {
  std::vector<HfKey> rows = moe_like_keys({151936, 2048, 6144, 24, 32, 4, 32768, 1e-6, 1e4},
                                          {128, 8, "num_experts", "num_local_experts"});
  rows.push_back(hf_obeyed("norm_topk_prob", "moe.router.norm_topk_prob", false));
  set_window_defaults(rows, 4096, false);
  for (HfKey& key : rows) {
    // its class keeps null, and its model then fails
    if (key.name == "num_key_value_heads") key.null_derives = false;
  }
  rows.push_back(hf_obeyed("moe_intermediate_size", "moe.intermediate_size", 768));
  rows.push_back(hf_obeyed("decoder_sparse_step", "moe.layer_step", 1));
  rows.push_back(hf_obeyed("mlp_only_layers", "moe.dense_layers", nullptr));
  allow_attention_bias(rows);
  return rows;
}

}  // namespace

Family qwen3_moe_family() {
  Family f;
  f.name = "qwen3_moe";
  f.hf_class = "Qwen3MoeForCausalLM";
  f.summary = "and norms of each head's queries and keys.";
  f.traits.query_key_norm = QueryKeyNorm::head;
  f.windows = WindowLayers::all;
  f.experts = Experts::always;
  f.defaults.num_experts = 128;
  f.defaults.top_k = 8;
  f.attention_biases = true;
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(qwen3_moe_keys());
  return f;
}

}  // namespace ltrain
