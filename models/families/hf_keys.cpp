#include "models/families/hf_keys.h"

#include <map>

#include "kernels/base/error.h"

namespace ltrain::recipe {
namespace {

using nlohmann::json;
using Rows = std::vector<HfKey>;

HfKey obeyed(std::string name, const std::string& path, json missing, bool null_derives = false) {
  HfKey key;
  key.name = std::move(name);
  key.use = HfUse::obeyed;
  key.path = "model." + path;
  key.null_derives = null_derives || missing.is_null();
  key.missing = std::move(missing);
  return key;
}

/// Another spelling of a row that has the default.
HfKey alias(std::string name, const std::string& path) {
  HfKey key = obeyed(std::move(name), path, 0);
  key.alias = true;
  return key;
}

HfKey required(std::string name, std::vector<json> accepted, std::string reason) {
  HfKey key;
  key.name = std::move(name);
  key.use = HfUse::required;
  key.accepted = std::move(accepted);
  key.reason = std::move(reason);
  return key;
}

HfKey special(std::string name, std::string reason, json missing = nullptr) {
  HfKey key;
  key.name = std::move(name);
  key.use = HfUse::special;
  key.missing = std::move(missing);
  key.reason = std::move(reason);
  return key;
}

void add_harmless(Rows& rows, const std::string& reason, const std::vector<const char*>& names) {
  for (const char* name : names) {
    HfKey key;
    key.name = name;
    key.reason = reason;
    rows.push_back(std::move(key));
  }
}

/// Of every architecture: none of these is read where the logits of a training step are computed.
void add_common(Rows& rows) {
  add_harmless(rows, "says who wrote the file, and with what",
               {"architectures", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash",
                "auto_map", "unsloth_version", "unsloth_fixed", "unsloth_version_fixed"});
  add_harmless(rows, "the type that weights are stored in; the recipe's precision says what is computed",
               {"torch_dtype", "dtype", "use_bfloat16"});
  add_harmless(rows, "a token's number or the tokenizer's class: data.tokenizer says what ids mean",
               {"bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id",
                "tokenizer_class", "model_max_length"});
  add_harmless(rows, "of generation",
               {"use_cache",
                "max_length",
                "min_length",
                "max_new_tokens",
                "do_sample",
                "early_stopping",
                "num_beams",
                "num_beam_groups",
                "diversity_penalty",
                "temperature",
                "top_k",
                "top_p",
                "typical_p",
                "repetition_penalty",
                "length_penalty",
                "no_repeat_ngram_size",
                "encoder_no_repeat_ngram_size",
                "bad_words_ids",
                "num_return_sequences",
                "output_scores",
                "return_dict_in_generate",
                "forced_bos_token_id",
                "forced_eos_token_id",
                "remove_invalid_values",
                "exponential_decay_length_penalty",
                "suppress_tokens",
                "begin_suppress_tokens",
                "prefix",
                "task_specific_params"});
  add_harmless(rows, "what transformers' forward returns beside the logits",
               {"return_dict", "use_return_dict", "output_hidden_states", "output_attentions"});
  add_harmless(rows, "of heads that classify",
               {"id2label", "label2id", "num_labels", "problem_type", "finetuning_task"});
  add_harmless(
      rows, "how transformers runs the same function",
      {"chunk_size_feed_forward", "gradient_checkpointing", "torchscript", "tf_legacy_loss",
       "_attn_implementation", "attn_implementation", "_experts_implementation", "experts_implementation"});
  add_harmless(rows, "of encoders and decoders that are two models",
               {"is_decoder", "tie_encoder_decoder", "cross_attention_hidden_size"});
  rows.push_back(required("is_encoder_decoder", {false, nullptr}, "two models"));
  rows.push_back(required("add_cross_attention", {false, nullptr}, "attention to another model's output"));
  rows.push_back(required("pruned_heads", {json::object(), nullptr}, "heads that are left out"));
  rows.push_back(required("quantization_config", {nullptr},
                          "weights that are stored in fewer bits; import what it was "
                          "quantized from"));
  rows.push_back(special("model_type", "model.architecture"));
}

Rows gpt2() {
  Rows rows{obeyed("vocab_size", "vocab_size", 50257),
            obeyed("n_embd", "hidden_size", 768),
            obeyed("n_layer", "num_hidden_layers", 12),
            obeyed("n_head", "num_attention_heads", 12),
            obeyed("n_positions", "max_position_embeddings", 1024),
            obeyed("n_inner", "intermediate_size", nullptr),
            obeyed("layer_norm_epsilon", "rms_norm_eps", 1e-5),
            obeyed("initializer_range", "initializer_range", 0.02),
            obeyed("embd_pdrop", "embd_pdrop", 0.1),
            obeyed("attn_pdrop", "attn_pdrop", 0.1),
            obeyed("resid_pdrop", "resid_pdrop", 0.1),
            obeyed("tie_word_embeddings", "tie_word_embeddings", true)};
  // Other spellings that transformers' class takes (attribute_map).
  for (const char* name :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"})
    rows.push_back(alias(name, name));
  rows.push_back(
      required("activation_function", {"gelu_new", "gelu_pytorch_tanh"}, "the feed-forward's activation"));
  rows.push_back(required("scale_attn_weights", {true}, "attention without 1/sqrt(head_dim)"));
  rows.push_back(required("scale_attn_by_inverse_layer_idx", {false}, "attention divided by the layer"));
  add_harmless(rows, "the order in which transformers computes attention scores",
               {"reorder_and_upcast_attn"});
  add_harmless(rows, "an older name of n_positions, which no code reads", {"n_ctx"});
  add_harmless(rows, "of heads that classify",
               {"summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
                "summary_first_dropout"});
  add_common(rows);
  return rows;
}

struct LlamaLike {
  int64_t vocab, hidden, intermediate, layers, heads;
  json kv_heads;
  int64_t positions;
  double eps, theta;
};

/// What llama and the MoE architectures have in common.
Rows llama_like(const LlamaLike& d) {
  Rows rows{obeyed("vocab_size", "vocab_size", d.vocab),
            obeyed("hidden_size", "hidden_size", d.hidden),
            obeyed("intermediate_size", "intermediate_size", d.intermediate),
            obeyed("num_hidden_layers", "num_hidden_layers", d.layers),
            obeyed("num_attention_heads", "num_attention_heads", d.heads),
            obeyed("num_key_value_heads", "num_key_value_heads", d.kv_heads, true),
            obeyed("head_dim", "head_dim", nullptr),
            obeyed("max_position_embeddings", "max_position_embeddings", d.positions),
            obeyed("rms_norm_eps", "rms_norm_eps", d.eps),
            obeyed("initializer_range", "initializer_range", 0.02),
            obeyed("attention_dropout", "attn_pdrop", 0.0),
            obeyed("tie_word_embeddings", "tie_word_embeddings", false),
            obeyed("rope_theta", "rope_theta", d.theta)};
  for (const char* section : {"rope_parameters", "rope_scaling"}) {
    const std::string s = section;
    rows.push_back(special(s, "rotary embeddings"));
    rows.push_back(alias(s + ".rope_theta", "rope_theta"));
    rows.push_back(alias(s + ".rope_type", "rope_scaling.rope_type"));
    rows.push_back(alias(s + ".type", "rope_scaling.rope_type"));
    rows.push_back(alias(s + ".factor", "rope_scaling.factor"));
    rows.push_back(alias(s + ".low_freq_factor", "rope_scaling.low_freq_factor"));
    rows.push_back(alias(s + ".high_freq_factor", "rope_scaling.high_freq_factor"));
    rows.push_back(
        alias(s + ".original_max_position_embeddings", "rope_scaling.original_max_position_embeddings"));
    rows.push_back(required(s + ".partial_rotary_factor", {1.0, nullptr}, "rotation of a part of each head"));
    for (const char* key : {".attention_factor", ".beta_fast", ".beta_slow", ".mscale", ".mscale_all_dim",
                            ".short_factor", ".long_factor", ".truncate"})
      rows.push_back(required(s + key, {nullptr}, "of rope_type yarn and longrope"));
  }
  rows.push_back(required("partial_rotary_factor", {1.0, nullptr}, "rotation of a part of each head"));
  rows.push_back(required("hidden_act", {"silu", "swish"}, "the feed-forward's activation"));
  rows.push_back(required("attention_bias", {false, nullptr}, "biases of attention's projections"));
  rows.push_back(required("mlp_bias", {false, nullptr}, "biases of the feed-forward"));
  rows.push_back(special("sliding_window", "attention to the last tokens alone"));
  rows.push_back(special("use_sliding_window", "whether sliding_window is read"));
  rows.push_back(special("max_window_layers", "which layers have a sliding window"));
  rows.push_back(special("layer_types", "which layers have a sliding window"));
  add_harmless(rows, "the order in which a matmul is added up", {"pretraining_tp"});
  add_common(rows);
  return rows;
}

struct Experts {
  int64_t experts, top_k;
  std::string name, other_name;
  double aux_loss_coef = 0.001;
};

Rows moe_like(const LlamaLike& d, const Experts& e) {
  Rows rows = llama_like(d);
  rows.push_back(obeyed(e.name, "moe.num_experts", e.experts));
  rows.push_back(alias(e.other_name, "moe.num_experts"));
  rows.push_back(obeyed("num_experts_per_tok", "moe.top_k", e.top_k));
  rows.push_back(special("output_router_logits", "whether transformers adds the loss for balance", false));
  rows.push_back(special("router_aux_loss_coef", "weight of the loss for balance", e.aux_loss_coef));
  rows.push_back(required("router_jitter_noise", {0.0, nullptr},
                          "noise on what router and experts read; ltrain's model.moe.router.jitter_eps is on "
                          "what the router reads"));
  rows.push_back(required("clip_qkv", {nullptr}, "queries, keys and values that are clamped"));
  rows.push_back(required("scoring_func", {"softmax", nullptr}, "the router's scores"));
  return rows;
}

Rows mixtral() {
  Rows rows = moe_like({32000, 4096, 14336, 32, 32, 8, 131072, 1e-5, 1e6},
                       {8, 2, "num_local_experts", "num_experts"});
  rows.push_back(required("norm_topk_prob", {true, nullptr}, "Mixtral's weights are divided by their sum"));
  return rows;
}

Rows qwen3_moe() {
  Rows rows = moe_like({151936, 2048, 6144, 24, 32, 4, 32768, 1e-6, 1e4},
                       {128, 8, "num_experts", "num_local_experts"});
  rows.push_back(obeyed("norm_topk_prob", "moe.router.norm_topk_prob", false));
  for (HfKey& key : rows) {
    if (key.name == "sliding_window") key.missing = 4096;
    if (key.name == "use_sliding_window") key.missing = false;
    if (key.name == "num_key_value_heads") key.null_derives = false;  // its class keeps null, its model fails
  }
  rows.push_back(obeyed("moe_intermediate_size", "moe.intermediate_size", 768));
  rows.push_back(obeyed("decoder_sparse_step", "moe.layer_step", 1));
  rows.push_back(obeyed("mlp_only_layers", "moe.dense_layers", nullptr));
  return rows;
}

Rows olmoe() {
  Rows rows = moe_like({50304, 2048, 2048, 16, 16, nullptr, 4096, 1e-5, 1e4},
                       {64, 8, "num_experts", "num_local_experts", 0.01});
  rows.push_back(obeyed("norm_topk_prob", "moe.router.norm_topk_prob", false));
  return rows;
}

const std::map<std::string, Rows>& tables() {
  static const std::map<std::string, Rows> all{
      {"gpt2", gpt2()},
      {"llama", llama_like({32000, 4096, 11008, 32, 32, nullptr, 2048, 1e-6, 1e4})},
      {"mixtral", mixtral()},
      {"qwen3_moe", qwen3_moe()},
      {"olmoe", olmoe()}};
  return all;
}

}  // namespace

const std::vector<std::string>& hf_architectures() {
  static const std::vector<std::string> names{"gpt2", "llama", "mixtral", "qwen3_moe", "olmoe"};
  return names;
}

const std::vector<HfKey>& hf_keys(const std::string& architecture) {
  const auto it = tables().find(architecture);
  LT_CHECK(it != tables().end(), "no table of config.json for {}", architecture);
  return it->second;
}

const HfKey* find_hf_key(const std::string& architecture, const std::string& name) {
  for (const HfKey& key : hf_keys(architecture))
    if (key.name == name) return &key;
  return nullptr;
}

}  // namespace ltrain::recipe
