// Qwen2 and Qwen2.5 (arXiv:2407.10671, 2412.15115), with the same model_type.
#include "models/families/llama_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> qwen2_keys() {
  std::vector<HfKey> rows = llama_like_keys({151936, 4096, 22016, 32, 32, 32, 32768, 1e-6, 1e4});
  set_window_defaults(rows, 4096, false, 28);
  return rows;
}

}  // namespace

Family qwen2_family() {
  Family f;
  f.name = "qwen2";
  f.hf_class = "Qwen2ForCausalLM";
  f.hf_score_class = "Qwen2ForSequenceClassification";
  f.summary = "llama with biases of queries, keys and values, and windows.";
  f.traits.qkv_bias = true;
  f.windows = WindowLayers::last;
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(qwen2_keys());
  return f;
}

}  // namespace ltrain
