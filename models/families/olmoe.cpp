// OLMoE (arXiv:2409.02060).
#include "models/families/llama_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> olmoe_keys() {
  std::vector<HfKey> rows = moe_like_keys({50304, 2048, 2048, 16, 16, nullptr, 4096, 1e-5, 1e4},
                                          {64, 8, "num_experts", "num_local_experts", 0.01});
  rows.push_back(hf_obeyed("norm_topk_prob", "moe.router.norm_topk_prob", false));
  allow_attention_bias(rows);
  for (HfKey& key : rows)
    if (key.name == "clip_qkv") key = hf_number_or_null("clip_qkv", "clip_qkv", nullptr);
  return rows;
}

}  // namespace

Family olmoe_family() {
  Family f;
  f.name = "olmoe";
  f.hf_class = "OlmoeForCausalLM";
  f.summary = "and norms of all queries and of all keys.";
  f.traits.query_key_norm = QueryKeyNorm::projection;
  f.experts = Experts::always;
  f.defaults.num_experts = 64;
  f.defaults.top_k = 8;
  f.defaults.norm_topk_prob = false;
  f.attention_biases = f.clips_qkv = true;
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(olmoe_keys());
  return f;
}

}  // namespace ltrain
