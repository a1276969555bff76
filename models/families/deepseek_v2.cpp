// DeepSeek-V2 (arXiv:2405.04434).
#include "models/families/deepseek_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> deepseek_v2_keys() {
  std::vector<HfKey> rows = deepseek_like_keys({{102400, 4096, 11008, 32, 32, nullptr, 2048, 1e-6, 1e4},
                                                {64, 6, "n_routed_experts", "num_experts"},
                                                1407,
                                                2,
                                                0,
                                                1.0});
  rows.push_back(hf_special("topk_method", "whether experts are chosen from groups", "greedy"));
  rows.push_back(hf_special("n_group", "groups of experts"));
  rows.push_back(hf_special("topk_group", "groups that a token chooses from"));
  rows.push_back(hf_required("scoring_func", {"softmax", nullptr}, "the router's scores"));
  rows.push_back(hf_fixed("norm_topk_prob", "moe.router.norm_topk_prob", false,
                          "weights that are divided by their sum"));
  for (HfKey& key : rows) {
    if (key.name != "num_experts_per_tok") continue;  // its class has no default
    key.missing = nullptr;
    key.null_derives = true;
  }
  return rows;
}

}  // namespace

Family deepseek_v2_family() {
  Family f = deepseek_like("deepseek_v2", "DeepseekV2ForCausalLM");
  f.summary = "latent attention (MLA), and experts beside shared ones.";
  f.defaults.num_experts = 64;
  f.defaults.top_k = 6;
  f.defaults.shared_experts = 2;
  f.defaults.norm_topk_prob = false;
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(deepseek_v2_keys());
  return f;
}

}  // namespace ltrain
