// Mixtral (arXiv:2401.04088).
#include "models/families/llama_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> mixtral_keys() {
  std::vector<HfKey> rows = moe_like_keys({32000, 4096, 14336, 32, 32, 8, 131072, 1e-5, 1e6},
                                          {8, 2, "num_local_experts", "num_experts"});
  rows.push_back(hf_fixed("norm_topk_prob", "moe.router.norm_topk_prob", true,
                          "weights that are divided by their sum, also that of one expert"));
  return rows;
}

}  // namespace

Family mixtral_family() {
  Family f;
  f.name = "mixtral";
  f.hf_class = "MixtralForCausalLM";
  f.summary = "llama with experts.";
  f.names.moe = "block_sparse_moe";
  f.windows = WindowLayers::all;
  f.experts = Experts::always;
  f.defaults.num_experts = 8;
  f.hf_layout.expert_gate = "w1";
  f.hf_layout.expert_up = "w3";
  f.hf_layout.expert_down = "w2";
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(mixtral_keys());
  return f;
}

}  // namespace ltrain
