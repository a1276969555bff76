// Phi-3 and Phi-4 (arXiv:2404.14219, 2412.08905), with the same model_type.
#include "models/families/llama_like.h"

namespace ltrain {
namespace {

std::vector<HfKey> phi3_keys() {
  std::vector<HfKey> rows = llama_like_keys({32064, 3072, 8192, 32, 32, nullptr, 4096, 1e-5, 1e4});
  std::erase_if(rows, [](const HfKey& key) { return key.name == "partial_rotary_factor"; });
  for (HfKey& key : rows)
    if (key.name.ends_with(".partial_rotary_factor")) key = hf_alias(key.name, "partial_rotary_factor");
  rows.push_back(hf_obeyed("partial_rotary_factor", "partial_rotary_factor", 1.0));
  // transformers prefers it to the key of rope_scaling.
  rows.push_back(
      hf_obeyed("original_max_position_embeddings", "rope_scaling.original_max_position_embeddings", 4096));
  rows.push_back(hf_obeyed("resid_pdrop", "resid_pdrop", 0.0));
  add_harmless(rows, "not read by transformers' class", {"embd_pdrop"});
  return rows;
}

}  // namespace

Family phi3_family() {
  Family f;
  f.name = "phi3";
  f.hf_class = "Phi3ForCausalLM";
  f.hf_score_class = "Phi3ForSequenceClassification";
  f.summary = "llama with queries, keys and values in one tensor, gate and up in another, and windows.";
  f.names.fused_qkv = "qkv_proj";
  f.names.fused_gate_up = "gate_up_proj";
  f.windows = WindowLayers::all;
  f.partial_rotary = true;
  f.rope_types = {RopeType::none, RopeType::longrope};
  f.hf_rope_types = {{"su", RopeType::longrope}, {"yarn", RopeType::longrope}};
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(phi3_keys());
  return f;
}

}  // namespace ltrain
