// Llama 1 to 3.2 (arXiv:2302.13971, 2307.09288, 2407.21783). With experts it is ltrain's own.
#include "models/families/llama_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> llama_keys() {
  std::vector<HfKey> rows = llama_like_keys({32000, 4096, 11008, 32, 32, nullptr, 2048, 1e-6, 1e4});
  allow_attention_bias(rows);
  return rows;
}

}  // namespace

Family llama_family() {
  Family f;
  f.name = "llama";
  f.hf_class = "LlamaForCausalLM";
  f.hf_score_class = "LlamaForSequenceClassification";
  f.summary = "RoPE, RMSNorm, grouped queries, SwiGLU.";
  f.experts = Experts::allowed;
  f.attention_biases = true;
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(llama_keys());
  return f;
}

}  // namespace ltrain
