// DeepSeek-V3 (arXiv:2412.19437).
#include "models/families/deepseek_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> deepseek_v3_keys() {
  std::vector<HfKey> rows = deepseek_like_keys({{129280, 7168, 18432, 61, 128, 128, 4096, 1e-6, 1e4},
                                                {256, 8, "n_routed_experts", "num_local_experts"},
                                                2048,
                                                1,
                                                3,
                                                2.5});
  rows.push_back(hf_obeyed("n_group", "moe.router.n_group", 8));
  rows.push_back(hf_obeyed("topk_group", "moe.router.topk_group", 4));
  rows.push_back(hf_obeyed("norm_topk_prob", "moe.router.norm_topk_prob", true));
  rows.push_back(hf_required("rope_interleave", {true, nullptr}, "pairs of channels that are no neighbours"));
  rows.push_back(hf_required("scoring_func", {"sigmoid", nullptr}, "the router's scores"));
  rows.push_back(hf_required("topk_method", {"noaux_tc", nullptr}, "how experts are chosen"));
  const std::string behind = "modules behind the last layer that predict more tokens";
  rows.push_back(hf_required("num_nextn_predict_layers", {0, 1, 2, 3, 4, nullptr}, behind));
  rows.push_back(hf_required("num_mtp_layers", {nullptr, 0, 1, 2, 3, 4}, behind));
  return rows;
}

}  // namespace

Family deepseek_v3_family() {
  Family f = deepseek_like("deepseek_v3", "DeepseekV3ForCausalLM");
  f.summary =
      "deepseek_v2 with sigmoid scores of experts, which are chosen by score + bias and balanced by the "
      "bias.";
  f.traits.correction_bias = f.traits.multi_token_prediction = true;
  f.names.mtp_embedding_norm = "enorm";
  f.names.mtp_hidden_norm = "hnorm";
  f.names.mtp_projection = "eh_proj";
  f.names.mtp_output_norm = "shared_head.norm";
  f.names.mtp_tokens_copy = "embed_tokens";
  f.names.mtp_output_copy = "shared_head.head";
  f.defaults.num_experts = 256;
  f.defaults.top_k = 8;
  f.defaults.shared_experts = 1;
  f.defaults.sigmoid_scores = true;
  f.defaults.routed_scaling_factor = 2.5;
  f.defaults.bias_update_rate = 0.001;
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(deepseek_v3_keys());
  return f;
}

}  // namespace ltrain
