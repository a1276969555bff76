// A family of models as data: its computation, its parameter names, defaults of recipe keys, and its Hugging
// Face config.json and tensors. A family is one file of this folder, which defines NAME_family(), and its
// name in LT_FAMILIES (families.cpp).
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/families/traits.h"

namespace ltrain {

struct HfKey;  // models/families/hf_keys.h

/// Names of parameters without the final ".weight" or ".bias". Names of a layer are relative to it, as in
/// "model.layers.3" + "." + "self_attn" + "." + "q_proj". They are Hugging Face's, except for experts, which
/// are one tensor of each kind: "experts.gate_up_proj" (experts, 2, F, H), "experts.down_proj" (experts, H,
/// F), and with expert_bias "experts.gate_up_proj_bias" (experts, 2, F), "experts.down_proj_bias" (experts,
/// H).
struct ParameterNames {
  std::string tokens = "model.embed_tokens";
  std::string positions;  ///< with PositionEmbedding::learned
  std::string layers = "model.layers";
  std::string final_norm = "model.norm";
  std::string output = "lm_head";  ///< unless tied to the embedding
  std::string score = "score";     ///< replaces the output in a reward model
  // Names of a layer.
  std::string attention_norm =
      "input_layernorm";              ///< before or after attention, by norm_placement; both: before
  std::string attention_output_norm;  ///< with NormPlacement::both
  std::string attention = "self_attn";
  std::string feed_forward_norm = "post_attention_layernorm";
  std::string feed_forward_output_norm;  ///< with NormPlacement::both
  std::string feed_forward = "mlp";
  std::string moe = "mlp";                       ///< instead of the feed-forward
  std::string router = "gate";                   ///< in an MoE layer
  std::string shared_experts = "shared_expert";  ///< in an MoE layer
  // Names within attention.
  std::string fused_qkv;  ///< queries, keys and values in one tensor, by rows; empty: three tensors
  std::string query = "q_proj", key = "k_proj", value = "v_proj";
  std::string attention_output = "o_proj";
  std::string query_norm = "q_norm", key_norm = "k_norm";
  std::string sinks;  ///< with attention_sinks; a name without ".weight"
  // Names with latent_attention: projections into and out of the latents, and their norms. `query` is used
  // without a latent of queries.
  std::string query_down, query_latent_norm, query_up;
  std::string key_value_down, key_value_latent_norm, key_value_up;
  // Names with multi_token_prediction, within a layer behind the last: norms of its inputs, their projection,
  // the norm of its output; and copies of the model's own tensors that files contain.
  std::string mtp_embedding_norm, mtp_hidden_norm, mtp_projection, mtp_output_norm;
  std::string mtp_tokens_copy, mtp_output_copy;
  // Names within a feed-forward.
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  ///< gate: empty without a gate
  std::string fused_gate_up;  ///< gate and up in one tensor, by rows; empty: two tensors

  /// Name with ModelTraits::correction_bias, within a layer.
  std::string correction_bias() const { return moe + ".gate.e_score_correction_bias"; }
  std::string layer(int64_t i) const { return layers + "." + std::to_string(i); }
};

/// Differences of Hugging Face's tensors to ltrain's (hf_tensors.h).
struct HfTensorLayout {
  /// Weights of linear layers are (in, out), as in GPT-2's Conv1D. ltrain's are (out, in).
  bool transposed_linear = false;
  /// Name endings of tensors that files may contain and that are computed here, such as masks.
  std::vector<std::string> buffers;
  /// All experts in one tensor of each kind, as in TensorName::stacked.
  bool stacked_experts = false;
  /// Names of an expert: "experts.7." + this + ".weight".
  std::string expert_gate = "gate_proj", expert_up = "up_proj", expert_down = "down_proj";
};

/// A rope_type of a config.json that transformers' class treats as another.
struct RopeTypeName {
  std::string written;
  RopeType read_as;
};

/// Presence of experts.
enum class Experts : uint8_t { never, allowed, always };

/// Layers with the sliding_window of a config.json without layer_types: none may have one; all; those from
/// max_window_layers on; those without positions; all except every full_attention_interval-th.
enum class WindowLayers : uint8_t { none, all, last, without_positions, but_every_nth };

/// Defaults of recipe keys.
struct FamilyDefaults {
  int64_t no_rope_layer_interval = 0;  ///< every N-th layer has no positions; 0: all have
  bool tie_word_embeddings = false;
  int64_t full_attention_interval = 0;  ///< with WindowLayers::but_every_nth
  double rope_theta = 10000.0, rope_local_base_freq = 0;
  int64_t shared_experts = 0;
  bool sigmoid_scores = false;  ///< experts' scores are sigmoids
  double routed_scaling_factor = 1, bias_update_rate = 0;
  int64_t num_experts = 0;  ///< always above 0 with Experts::always
  int64_t top_k = 2;
  bool norm_topk_prob = true;
  std::optional<double> attn_logit_softcapping, final_logit_softcapping;
};

struct Family {
  std::string name;      ///< model.architecture, and model_type of a config.json
  std::string hf_class;  ///< transformers' class, architectures of a config.json: "LlamaForCausalLM"
  /// transformers' class of reward models: "LlamaForSequenceClassification"; empty: none is written
  std::string hf_score_class;
  std::string summary;  ///< for the reference: "learned positions, LayerNorm, biases, GELU."
  ModelTraits traits;
  ParameterNames names;
  /// Settings that a recipe may choose besides the traits.
  bool grouped_queries = true;  ///< fewer key-value heads than query heads
  bool free_head_dim = true;    ///< head_dim other than hidden_size / num_attention_heads
  WindowLayers windows = WindowLayers::none;
  bool layers_without_positions = false;
  bool local_rotation = false;       ///< layers with a window may have their own rope_theta
  bool partial_rotary = false;       ///< only some of each head's channels may rotate
  std::vector<RopeType> rope_types;  ///< accepted by transformers' class; empty: all
  bool attention_biases = false;     ///< a model may have biases of queries, keys, values and output
  bool clips_qkv = false;            ///< queries, keys and values may be clamped, after their norms
  bool soft_caps = false;            ///< soft-caps, and a scale of the scores other than 1 / sqrt(head_dim)
  Experts experts = Experts::never;
  FamilyDefaults defaults;
  HfTensorLayout hf_layout;
  std::vector<RopeTypeName> hf_rope_types;
  /// rope_scaling for a config.json with neither it nor rope_parameters; JSON, empty: none.
  std::string hf_default_rope;
  std::shared_ptr<const std::vector<HfKey>> hf_keys;  ///< use of each key of a config.json

  /// Width of the feed-forward for a recipe without one: 4 hidden_size without a gate, otherwise about as
  /// many weights, 8/3 hidden_size, rounded to multiples of 256.
  int64_t default_intermediate_size(int64_t hidden_size) const;
};

/// All families in the order of LT_FAMILIES, the order of messages and pages.
const std::vector<const Family*>& families();
const Family* find_family(std::string_view name);  ///< null if unknown
/// Names of families whose dense models compute as those of `moe` do, apart from experts: "llama, mistral".
/// Empty: there are none.
std::string dense_families(const Family& moe);
const Family& family_of(std::string_view name);  ///< throws Error (internal) if unknown
/// Names of the families for which `which` is true.
std::vector<std::string> family_names(const std::function<bool(const Family&)>& which);

}  // namespace ltrain
