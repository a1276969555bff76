// Mistral (arXiv:2310.06825).
#include "models/families/llama_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> mistral_keys() {
  std::vector<HfKey> rows = llama_like_keys({32000, 4096, 14336, 32, 32, 8, 131072, 1e-6, 1e4});
  set_window_defaults(rows, 4096);
  return rows;
}

}  // namespace

Family mistral_family() {
  Family f;
  f.name = "mistral";
  f.hf_class = "MistralForCausalLM";
  f.hf_score_class = "MistralForSequenceClassification";
  f.summary = "llama with windows.";
  f.windows = WindowLayers::all;
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(mistral_keys());
  return f;
}

}  // namespace ltrain
