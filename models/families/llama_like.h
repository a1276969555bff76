// Common part of llama and the families derived from it.
#pragma once
#include "models/families/family.h"
#include "models/families/hf_keys.h"

namespace ltrain {

/// Defaults of transformers' class.
struct LlamaLikeKeys {
  int64_t vocab, hidden, intermediate, layers, heads;
  nlohmann::json kv_heads;
  int64_t positions;
  double eps, theta;
};
std::vector<HfKey> llama_like_keys(const LlamaLikeKeys& defaults);

/// For Family::attention_biases.
void allow_attention_bias(std::vector<HfKey>& rows);

/// Defaults of transformers' class; null if it lacks the key.
void set_window_defaults(std::vector<HfKey>& rows, nlohmann::json sliding_window,
                         nlohmann::json use_sliding_window = nullptr,
                         nlohmann::json max_window_layers = nullptr);

struct ExpertKeys {
  int64_t experts, top_k;
  std::string name, other_name;  ///< names of the number of experts
  double aux_loss_coef = 0.001;
};
/// llama_like_keys with experts.
std::vector<HfKey> moe_like_keys(const LlamaLikeKeys& defaults, const ExpertKeys& experts);

}  // namespace ltrain
