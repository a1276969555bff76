// Gemma 2 (arXiv:2408.00118).
#include "models/families/gemma_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> gemma2_keys() {
  std::vector<HfKey> rows = gemma_like_keys({256000, 2304, 9216, 26, 8, 4, 8192, 1e-6, 1e4}, 4096);
  rows.push_back(hf_number_or_null("attn_logit_softcapping", "attn_logit_softcapping", 50.0));
  rows.push_back(hf_number_or_null("final_logit_softcapping", "final_logit_softcapping", 30.0));
  allow_attention_bias(rows);
  return rows;
}

}  // namespace

Family gemma2_family() {
  Family f = gemma_like_family();
  f.name = "gemma2";
  f.hf_class = "Gemma2ForCausalLM";
  f.hf_score_class = "Gemma2ForSequenceClassification";
  f.summary =
      "llama with GeGLU, norms before and after attention and feed-forward that scale by 1 + weight, a "
      "scaled "
      "embedding, soft-caps of scores and logits, and windows.";
  f.defaults.full_attention_interval = 2;
  f.defaults.attn_logit_softcapping = 50.0;
  f.defaults.final_logit_softcapping = 30.0;
  f.attention_biases = true;
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(gemma2_keys());
  return f;
}

}  // namespace ltrain
