// SmolLM3 (huggingface.co/blog/smollm3): every fourth layer has no positions (arXiv:2501.18795).
#include "models/families/llama_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> smollm3_keys() {
  std::vector<HfKey> rows = llama_like_keys({128256, 2048, 11008, 36, 16, 4, 32768, 1e-6, 2e6});
  set_window_defaults(rows, nullptr, false);
  rows.push_back(hf_obeyed("no_rope_layer_interval", "no_rope_layer_interval", 4));
  rows.push_back(hf_obeyed("no_rope_layers", "no_rope_layers", nullptr));
  for (HfKey& key : rows)
    if (key.name == "tie_word_embeddings") key.missing = true;
  allow_attention_bias(rows);
  return rows;
}

}  // namespace

Family smollm3_family() {
  Family f;
  f.name = "smollm3";
  f.hf_class = "SmolLM3ForCausalLM";
  f.hf_score_class = "SmolLM3ForSequenceClassification";
  f.summary = "llama with layers without positions, and windows.";
  f.windows = WindowLayers::without_positions;
  f.layers_without_positions = true;
  f.defaults.no_rope_layer_interval = 4;
  f.defaults.tie_word_embeddings = true;
  f.attention_biases = true;
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(smollm3_keys());
  return f;
}

}  // namespace ltrain
