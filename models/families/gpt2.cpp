// GPT-2 (Radford et al., 2019).
#include "models/families/family.h"
#include "models/families/hf_keys.h"

namespace ltrain {
namespace {

std::vector<HfKey> gpt2_keys() {
  std::vector<HfKey> rows{hf_obeyed("vocab_size", "vocab_size", 50257),
                          hf_obeyed("n_embd", "hidden_size", 768),
                          hf_obeyed("n_layer", "num_hidden_layers", 12),
                          hf_obeyed("n_head", "num_attention_heads", 12),
                          hf_obeyed("n_positions", "max_position_embeddings", 1024),
                          hf_obeyed("n_inner", "intermediate_size", nullptr),
                          hf_obeyed("layer_norm_epsilon", "rms_norm_eps", 1e-5),
                          hf_obeyed("initializer_range", "initializer_range", 0.02),
                          hf_obeyed("embd_pdrop", "embd_pdrop", 0.1),
                          hf_obeyed("attn_pdrop", "attn_pdrop", 0.1),
                          hf_obeyed("resid_pdrop", "resid_pdrop", 0.1),
                          hf_obeyed("tie_word_embeddings", "tie_word_embeddings", true)};
  // Other spellings that transformers' class takes (attribute_map).
  for (const char* name :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"})
    rows.push_back(hf_alias(name, name));
  rows.push_back(hf_activation("activation_function", "gelu_new"));
  rows.push_back(hf_required("scale_attn_weights", {true}, "attention without 1/sqrt(head_dim)"));
  rows.push_back(hf_required("scale_attn_by_inverse_layer_idx", {false}, "attention divided by the layer"));
  add_harmless(rows, "the order in which transformers computes attention scores",
               {"reorder_and_upcast_attn"});
  rows.push_back(hf_repeated("n_ctx", "max_position_embeddings",
                             "an older name of n_positions, which llama.cpp's converter reads"));
  add_harmless(rows, "of heads that classify",
               {"summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
                "summary_first_dropout"});
  add_common(rows);
  return rows;
}

}  // namespace

Family gpt2_family() {
  Family f;
  f.name = "gpt2";
  f.hf_class = "GPT2LMHeadModel";
  f.hf_score_class = "GPT2ForSequenceClassification";
  f.summary = "learned positions, LayerNorm, biases, GELU.";
  f.traits.norm = NormKind::layer;
  f.traits.positions = PositionEmbedding::learned;
  f.traits.qkv_bias = f.traits.attention_output_bias = f.traits.feed_forward_bias = true;
  f.traits.feed_forward = FeedForward::gelu;
  f.names.tokens = "transformer.wte";
  f.names.positions = "transformer.wpe";
  f.names.layers = "transformer.h";
  f.names.final_norm = "transformer.ln_f";
  f.names.attention_norm = "ln_1";
  f.names.attention = "attn";
  f.names.feed_forward_norm = "ln_2";
  f.names.fused_qkv = "c_attn";
  f.names.attention_output = "c_proj";
  f.names.gate.clear();
  f.names.up = "c_fc";
  f.names.down = "c_proj";
  f.grouped_queries = f.free_head_dim = false;
  f.defaults.tie_word_embeddings = true;
  f.hf_layout.transposed_linear = true;
  f.hf_layout.buffers = {".attn.bias", ".attn.masked_bias"};
  f.hf_keys = std::make_shared<const std::vector<HfKey>>(gpt2_keys());
  return f;
}

}  // namespace ltrain
