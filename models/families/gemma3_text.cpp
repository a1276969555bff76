// Gemma 3 (arXiv:2503.19786), the language model.
#include "models/families/gemma_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> gemma3_text_keys() {
  std::vector<HfKey> rows = gemma_like_keys({262208, 2304, 9216, 26, 8, 4, 131072, 1e-6, 1e6}, 4096);
  rows.push_back(hf_obeyed("rope_local_base_freq", "rope_local_base_freq", 1e4));
  rows.push_back(hf_special("sliding_window_pattern",
                            "which layers have a sliding window, where layer_types is missing", 6));
  add_harmless(rows, "written, and not read, by transformers' class", {"_sliding_window_pattern"});
  rows.push_back(hf_required("attn_logit_softcapping", {nullptr},
                             "a soft-cap of scores, which transformers' class reads and does not apply"));
  rows.push_back(hf_number_or_null("final_logit_softcapping", "final_logit_softcapping", nullptr));
  allow_attention_bias(rows);
  return rows;
}

}  // namespace

Family gemma3_text_family() {
  Family f = gemma_like_family();
  f.name = "gemma3_text";
  f.hf_class = "Gemma3ForCausalLM";
  f.hf_score_class = "Gemma3TextForSequenceClassification";
  f.summary =
      "gemma2 with norms of queries and keys, without soft-caps, with a window in five of six layers, which "
      "rotate by "
      "a base of their own.";
  f.traits.query_key_norm = QueryKeyNorm::head;
  f.local_rotation = true;
  f.defaults.full_attention_interval = 6;
  f.defaults.rope_theta = 1e6;
  f.defaults.rope_local_base_freq = 1e4;
  f.attention_biases = true;
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(gemma3_text_keys());
  return f;
}

}  // namespace ltrain
