// Common part of DeepSeek-V2 and V3: latent attention, and experts with shared ones.
#pragma once
#include "models/families/llama_like.h"

namespace ltrain {

/// Defaults of transformers' class.
struct DeepseekKeys {
  LlamaLikeKeys model;
  ExpertKeys experts;
  int64_t moe_intermediate, shared_experts, first_dense;
  double routed_scaling;
};
std::vector<HfKey> deepseek_like_keys(const DeepseekKeys& defaults);
Family deepseek_like(std::string name, std::string hf_class);

}  // namespace ltrain
