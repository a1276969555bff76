// Configuration of a model, in Hugging Face's config names. Set by runtime/recipe, read by models/.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "kernels/moe/route.h"
#include "models/families/family.h"
#include "models/layers/layer_names.h"
#include "models/layers/lora.h"

namespace ltrain {

/// transformers' rope_scaling, by its names (models/attention/rope_angles.h).
struct RopeScaling {
  RopeType type = RopeType::none;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  ///< llama3
  int64_t original_max_position_embeddings = 8192;       ///< llama3, yarn and longrope
  double beta_fast = 32.0, beta_slow = 1.0;              ///< yarn: rotations within the original positions
  bool truncate = true;                                  ///< yarn: its range has integer channels
  std::optional<double> attention_factor;                ///< yarn and longrope: factor of cosine and sine
  std::optional<double> mscale, mscale_all_dim;          ///< yarn: attention_factor follows from these
  /// longrope: divisors of each frequency, for sequences of up to original_max_position_embeddings and for
  /// longer ones.
  std::vector<double> short_factor, long_factor;
};

/// YaRN's factor of queries and keys, for one of its two mscales.
inline double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

/// Scores of experts, from logits.
enum class RouterScore : uint8_t { softmax, sigmoid };
LT_ENUM_NAMES(RouterScore, {RouterScore::softmax, "softmax"}, {RouterScore::sigmoid, "sigmoid"});

/// topk_last: the best of all scores; topk_first: the best logits, with scores over these only.
enum class RouterOrder : uint8_t { topk_last, topk_first };
LT_ENUM_NAMES(RouterOrder, {RouterOrder::topk_last, "topk_last"}, {RouterOrder::topk_first, "topk_first"});

/// Choice of a token's experts. learned: by its hidden state; hash: by a fixed table of token ids
/// (arXiv:2106.04426).
enum class RouterKind : uint8_t { learned, hash };
LT_ENUM_NAMES(RouterKind, {RouterKind::learned, "learned"}, {RouterKind::hash, "hash"});

/// Balance losses (docs/moe.md).
enum class BalanceLoss : uint8_t { none, switch_loss, sequence, global, uniform, hf };
LT_ENUM_NAMES(BalanceLoss, {BalanceLoss::none, "none"}, {BalanceLoss::switch_loss, "switch"},
              {BalanceLoss::sequence, "sequence"}, {BalanceLoss::global, "global"},
              {BalanceLoss::uniform, "uniform"}, {BalanceLoss::hf, "hf"});

/// Keys that a layer's queries see: all earlier ones, or those of a window.
enum class LayerType : uint8_t { full_attention, sliding_attention };
LT_ENUM_NAMES(LayerType, {LayerType::full_attention, "full_attention"},
              {LayerType::sliding_attention, "sliding_attention"});

/// An MoE layer instead of the feed-forward.
struct MoeConfig {
  int64_t num_experts = 0;   ///< 0: none, the model is dense
  int64_t zero_experts = 0;  ///< behind them: experts that are the identity, which routers choose alike
  int64_t top_k = 2;
  int64_t intermediate_size = 0;  ///< width of an expert
  // MoE layers: every layer_step-th layer, the last of each run, except dense_layers.
  int64_t layer_step = 1;
  std::vector<int64_t> dense_layers;
  int64_t shared_experts = 0;  ///< for every token: a feed-forward with the width of this many experts
  bool shared_expert_gate = false;
  // The router (kernels/moe/route.h).
  RouterKind kind = RouterKind::learned;
  /// First training step in which token ids choose, by scores that routers have taught (StableMoE,
  /// arXiv:2204.08396); 0: never.
  int64_t freeze_step = 0;
  RouterScore score = RouterScore::softmax;
  RouterOrder order = RouterOrder::topk_last;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.0;
  int64_t n_group = 1, topk_group = 1;
  Selection selection = Selection::top_k;
  double second_threshold = 0.5;  ///< gshard: weight from which the second expert is always taken
  double top_p = 0.4;             ///< top_p: sum of scores from which a token has experts enough
  double jitter_eps = 0;          ///< training: noise on the router's input; 0: none
  double bias_update_rate = 0;    ///< balance without a loss: step of the scores' bias; 0: no bias
  /// With zero experts and a bias: mean number of real experts a token, to which biases move.
  std::optional<double> experts_per_token;
  BalanceLoss balance = BalanceLoss::none;
  double balance_coeff = 0.01, z_loss_coeff = 0.0, entropy_coeff = 0.0;
  // Most rows of an expert: capacity_factor * tokens * top_k / num_experts; unlimited without one.
  std::optional<double> capacity_factor, eval_capacity_factor;
  Drop drop_policy = Drop::least_weight;
  /// Row budget of a rank's experts, in even shares (DispatchOptions::row_budget).
  std::optional<double> row_budget;

  /// True if routers read MicroBatch::by_token.
  bool by_token() const { return num_experts > 0 && (kind == RouterKind::hash || freeze_step > 0); }
  /// Number of experts that routers choose from.
  int64_t router_outputs() const { return num_experts + zero_experts; }
  /// Number of dense layers if they are the first ones; otherwise -1.
  int64_t first_dense() const {
    for (size_t i = 0; i < dense_layers.size(); ++i)
      if (dense_layers[i] != static_cast<int64_t>(i)) return -1;
    return static_cast<int64_t>(dense_layers.size());
  }
  bool in_layer(int64_t i) const {
    return num_experts > 0 && (i + 1) % layer_step == 0 &&
           std::find(dense_layers.begin(), dense_layers.end(), i) == dense_layers.end();
  }
};

/// Settings of ModelTraits::latent_attention, by Hugging Face's names.
struct LatentAttention {
  std::optional<int64_t> q_lora_rank = 1536;  ///< width of the latent of queries; none: no such latent
  int64_t kv_lora_rank = 512;
  int64_t qk_nope_head_dim = 128,
          qk_rope_head_dim = 64;  ///< channels of a query and key without and with rotation
  int64_t v_head_dim = 128;
};

struct ModelConfig {
  const Family* family = &family_of("llama");
  int64_t vocab_size = 256;
  int64_t hidden_size = 256;
  int64_t intermediate_size = 1024;
  int64_t num_hidden_layers = 4;
  int64_t num_attention_heads = 4;
  int64_t num_key_value_heads = 4;
  int64_t head_dim = 64;  ///< channels of a query and a key
  LatentAttention latent;
  int64_t max_position_embeddings = 2048;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  double rope_local_base_freq =
      0;  ///< rope_theta of layers with a window, which have no scaling; 0: same as others
  double partial_rotary_factor = 1.0;  ///< fraction of each head's channels that rotate, the first ones
  int64_t no_rope_layer_interval = 0;  ///< rule for no_rope_layers; 0: all layers have positions
  /// for each layer, as in Hugging Face: 1 rotates, 0 does not; empty: 1
  std::vector<int64_t> no_rope_layers;
  std::optional<int64_t> sliding_window;  ///< keys that a query sees, its own included, in sliding layers
  std::vector<LayerType> layer_types;     ///< for each layer; empty: all slide if there is a sliding_window
  double query_pre_attn_scalar = 0;       ///< scores are divided by its square root; 0: head_dim
  /// soft-caps of scores and of logits
  std::optional<double> attn_logit_softcapping, final_logit_softcapping;
  double norm_eps = 1e-5;                ///< rms_norm_eps or layer_norm_epsilon
  std::optional<Activation> hidden_act;  ///< activation function; none: the family's
  bool attention_bias = false;           ///< biases of attention's projections, besides the family's
  /// limit of the absolute values of queries, keys and values, before their rotation
  std::optional<double> clip_qkv;
  bool tie_word_embeddings = false;
  MoeConfig moe;
  int64_t num_nextn_predict_layers = 0;  ///< modules behind the last layer, each predicting one more token
  double mtp_loss_scaling_factor = 0.1;  ///< weight of the mean of their losses in the objective
  double initializer_range = 0.02;
  bool scaled_init =
      true;  ///< projections into the residual stream start smaller by sqrt(2 num_hidden_layers)
  double embd_pdrop = 0.0;   ///< dropout after the embeddings
  double attn_pdrop = 0.0;   ///< dropout of attention probabilities
  double resid_pdrop = 0.0;  ///< dropout before each residual addition
  LoraConfig lora;           ///< adapters, which no config.json has
  /// The output is a score of each text instead of logits: a reward model.
  bool scores_texts = false;

  /// Number of layers including multi-token prediction modules, which are numbered after the others.
  int64_t all_layers() const { return num_hidden_layers + num_nextn_predict_layers; }
  /// True if the last pipeline stage also reads the embedding.
  bool shares_embedding() const {
    return (tie_word_embeddings && !scores_texts) || num_nextn_predict_layers > 0;
  }
  bool has_experts(int64_t layer) const {
    return layer < num_hidden_layers ? moe.in_layer(layer) : moe.num_experts > 0;
  }
  /// Name of a layer in messages, traces and random streams.
  std::string place(int64_t layer) const {
    const bool block = layer < num_hidden_layers;
    return std::string(block ? kBlockPrefix : kMtpPrefix) +
           std::to_string(block ? layer : layer - num_hidden_layers);
  }

  bool rotates(int64_t layer) const {
    const size_t i = static_cast<size_t>(layer);
    return traits().positions == PositionEmbedding::rotary &&
           (i >= no_rope_layers.size() || no_rope_layers[i] != 0);
  }
  /// True if the layer's queries and keys rotate by rope_local_base_freq.
  bool rotates_locally(int64_t layer) const { return rope_local_base_freq > 0 && window(layer) > 0; }
  /// Rotary channels of a head: the first ones, with latent attention the last ones.
  int64_t rotary_dim() const {
    if (traits().latent_attention) return latent.qk_rope_head_dim;
    return static_cast<int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
  }
  /// Keys that a query of the layer sees, its own included; 0: all earlier ones.
  int64_t window(int64_t layer) const {
    const size_t i = static_cast<size_t>(layer);
    const bool slides =
        sliding_window && (i >= layer_types.size() || layer_types[i] == LayerType::sliding_attention);
    return slides ? *sliding_window : 0;
  }

  /// Channels of a value.
  int64_t value_dim() const { return traits().latent_attention ? latent.v_head_dim : head_dim; }
  /// AttentionShape::scale; 0: 1 / sqrt(head_dim).
  double attention_scale() const {
    if (traits().latent_attention && rope_scaling.type == RopeType::yarn) {
      const double m = yarn_mscale(rope_scaling.factor, rope_scaling.mscale_all_dim.value_or(0));
      return m * m / std::sqrt(static_cast<double>(head_dim));
    }
    const double by = query_pre_attn_scalar;
    return by == 0 || by == static_cast<double>(head_dim) ? 0 : 1 / std::sqrt(by);
  }

  /// True if experts are chosen by score + bias.
  bool has_correction_bias() const {
    return moe.num_experts > 0 && (moe.bias_update_rate > 0 || traits().correction_bias);
  }

  /// The family's traits with this model's settings.
  ModelTraits traits() const {
    ModelTraits t = family->traits;
    if (hidden_act) t.feed_forward = with_activation(t.feed_forward, *hidden_act);
    t.qkv_bias = t.qkv_bias || attention_bias;
    t.attention_output_bias = t.attention_output_bias || attention_bias;
    return t;
  }
  const ParameterNames& names() const { return family->names; }
  /// Name of the head's weight of a reward model.
  std::string score_name() const { return names().score + ".weight"; }
};

/// Widest window of any layer; 0 if there is none.
inline int64_t widest_window(const ModelConfig& model) {
  int64_t window = 0;
  for (int64_t i = 0; i < model.num_hidden_layers; ++i) window = std::max(window, model.window(i));
  return window;
}

}  // namespace ltrain
