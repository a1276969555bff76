#include "models/families/deepseek_like.h"

namespace ltrain {

std::vector<HfKey> deepseek_like_keys(const DeepseekKeys& d) {
  std::vector<HfKey> rows = moe_like_keys(d.model, d.experts);
  std::erase_if(rows, [](const HfKey& key) {
    return key.name == "head_dim" || key.name == "output_router_logits" ||
           key.name == "router_aux_loss_coef" || key.name == "scoring_func";
  });
  rows.push_back(hf_number_or_null("q_lora_rank", "q_lora_rank", 1536));
  rows.push_back(hf_obeyed("kv_lora_rank", "kv_lora_rank", 512));
  rows.push_back(hf_obeyed("qk_nope_head_dim", "qk_nope_head_dim", 128));
  rows.push_back(hf_obeyed("qk_rope_head_dim", "qk_rope_head_dim", 64));
  rows.push_back(hf_obeyed("v_head_dim", "v_head_dim", 128));
  rows.push_back(hf_obeyed("moe_intermediate_size", "moe.intermediate_size", d.moe_intermediate));
  rows.push_back(hf_obeyed("n_shared_experts", "moe.shared_experts", d.shared_experts));
  rows.push_back(hf_obeyed("routed_scaling_factor", "moe.router.routed_scaling_factor", d.routed_scaling));
  rows.push_back(hf_special("first_k_dense_replace", "layers that have no experts", d.first_dense));
  rows.push_back(hf_required("moe_layer_freq", {1, nullptr}, "layers between those with experts"));
  add_harmless(rows, "follows from qk_nope_head_dim and qk_rope_head_dim, whatever is written",
               {"head_dim", "qk_head_dim"});
  add_harmless(rows,
               "of a loss for balance that transformers' class does not have; model.moe.balance has some",
               {"aux_loss_alpha", "seq_aux", "output_router_logits", "router_aux_loss_coef"});
  add_harmless(rows, "how its authors place experts on GPUs", {"ep_size"});
  return rows;
}

Family deepseek_like(std::string name, std::string hf_class) {
  Family f;
  f.name = std::move(name);
  f.hf_class = std::move(hf_class);
  f.traits.latent_attention = f.traits.interleaved_rotation = true;
  f.names.query_down = "q_a_proj";
  f.names.query_latent_norm = "q_a_layernorm";
  f.names.query_up = "q_b_proj";
  f.names.key_value_down = "kv_a_proj_with_mqa";
  f.names.key_value_latent_norm = "kv_a_layernorm";
  f.names.key_value_up = "kv_b_proj";
  f.names.shared_experts = "shared_experts";
  f.grouped_queries = false;
  f.experts = Experts::always;
  return f;
}

}  // namespace ltrain
