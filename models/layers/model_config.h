// What a model is: Hugging Face's config names. Filled by runtime/recipe, read by models/.
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

namespace ltrain {

/// transformers' rope_scaling, by its names (models/layers/rope_angles.h).
struct RopeScaling {
  RopeType type = RopeType::none;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  ///< of llama3
  int64_t original_max_position_embeddings = 8192;       ///< of llama3, yarn and longrope
  double beta_fast = 32.0, beta_slow = 1.0;              ///< of yarn: turns within the original positions
  bool truncate = true;                                  ///< of yarn: its range is of whole channels
  std::optional<double> attention_factor;                ///< of yarn and longrope: of cosine and sine
  std::optional<double> mscale, mscale_all_dim;          ///< of yarn: what attention_factor follows from
  /// Of longrope: what each frequency is divided by, for sequences of up to original_max_position_embeddings
  /// and for longer ones.
  std::vector<double> short_factor, long_factor;
};

/// What YaRN scales queries and keys by, for one of its two mscales.
inline double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

/// Scores of experts, from logits.
enum class RouterScore : uint8_t { softmax, sigmoid };
LT_ENUM_NAMES(RouterScore, {RouterScore::softmax, "softmax"}, {RouterScore::sigmoid, "sigmoid"});

/// topk_last: the best of all scores; topk_first: the best logits, and scores among these.
enum class RouterOrder : uint8_t { topk_last, topk_first };
LT_ENUM_NAMES(RouterOrder, {RouterOrder::topk_last, "topk_last"}, {RouterOrder::topk_first, "topk_first"});

/// Losses for balance (docs/moe.md).
enum class BalanceLoss : uint8_t { none, switch_loss, sequence, global, uniform, hf };
LT_ENUM_NAMES(BalanceLoss, {BalanceLoss::none, "none"}, {BalanceLoss::switch_loss, "switch"},
              {BalanceLoss::sequence, "sequence"}, {BalanceLoss::global, "global"},
              {BalanceLoss::uniform, "uniform"}, {BalanceLoss::hf, "hf"});

/// Which keys a layer's queries see: all before them, or those of a window.
enum class LayerType : uint8_t { full_attention, sliding_attention };
LT_ENUM_NAMES(LayerType, {LayerType::full_attention, "full_attention"},
              {LayerType::sliding_attention, "sliding_attention"});

/// An MoE layer in the place of the feed-forward.
struct MoeConfig {
  int64_t num_experts = 0;  ///< 0: none, the model is dense
  int64_t top_k = 2;
  int64_t intermediate_size = 0;  ///< of an expert
  // Which layers: every layer_step-th, the last of each run, but for those named.
  int64_t layer_step = 1;
  std::vector<int64_t> dense_layers;
  int64_t shared_experts = 0;  ///< every token goes to them: a feed-forward of so many experts' width
  bool shared_expert_gate = false;
  // The router (kernels/moe/route.h).
  RouterScore score = RouterScore::softmax;
  RouterOrder order = RouterOrder::topk_last;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.0;
  int64_t n_group = 1, topk_group = 1;
  Selection selection = Selection::top_k;
  double second_threshold = 0.5;  ///< gshard: weight from which the second expert is always taken
  double jitter_eps = 0;          ///< training: noise on what the router reads; 0: none
  double bias_update_rate = 0;    ///< balance without a loss: step of the bias of scores; 0: no bias
  BalanceLoss balance = BalanceLoss::none;
  double balance_coeff = 0.01, z_loss_coeff = 0.0;
  // Most rows of an expert: capacity_factor * tokens * top_k / num_experts; without one all
  // that come.
  std::optional<double> capacity_factor, eval_capacity_factor;
  Drop drop_policy = Drop::least_weight;
  /// Rows that a rank's experts have memory for at once, in even shares (DispatchOptions::row_budget).
  std::optional<double> row_budget;

  /// The dense layers are the first so many; -1: they are others.
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

/// Of ModelTraits::latent_attention, by Hugging Face's names.
struct LatentAttention {
  std::optional<int64_t> q_lora_rank = 1536;  ///< width of the latent of queries; none: they have no latent
  int64_t kv_lora_rank = 512;
  int64_t qk_nope_head_dim = 128,
          qk_rope_head_dim = 64;  ///< of a query and key: what does not rotate, what does
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
  int64_t head_dim = 64;  ///< of a query and a key
  LatentAttention latent;
  int64_t max_position_embeddings = 2048;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  double rope_local_base_freq =
      0;  ///< rope_theta of layers with a window, which have no scaling; 0: as others
  double partial_rotary_factor = 1.0;   ///< of each head's channels, those that rotate: the first
  int64_t no_rope_layer_interval = 0;   ///< what no_rope_layers follows from; 0: all layers have positions
  std::vector<int64_t> no_rope_layers;  ///< by layer, as Hugging Face has it: 1 rotates, 0 does not; empty: 1
  std::optional<int64_t> sliding_window;  ///< keys that a query sees, its own among them, in sliding layers
  std::vector<LayerType> layer_types;     ///< by layer; empty: all slide where there is a sliding_window
  double query_pre_attn_scalar = 0;       ///< scores are divided by its root; 0: head_dim
  std::optional<double> attn_logit_softcapping, final_logit_softcapping;  ///< of scores, of logits
  double norm_eps = 1e-5;  ///< rms_norm_eps or layer_norm_epsilon
  bool tie_word_embeddings = false;
  MoeConfig moe;
  int64_t num_nextn_predict_layers = 0;  ///< modules behind the last layer that predict one more token each
  double mtp_loss_scaling_factor = 0.1;  ///< of the mean of their losses, in the objective
  double initializer_range = 0.02;
  bool scaled_init =
      true;  ///< projections into the residual stream begin smaller by sqrt(2 num_hidden_layers)
  double embd_pdrop = 0.0;   ///< dropout after the embeddings
  double attn_pdrop = 0.0;   ///< dropout of attention probabilities
  double resid_pdrop = 0.0;  ///< dropout before each residual addition

  /// With those of multi-token prediction, which have the numbers behind the others'.
  int64_t all_layers() const { return num_hidden_layers + num_nextn_predict_layers; }
  /// The last stage of a pipeline reads the embedding, too.
  bool shares_embedding() const { return tie_word_embeddings || num_nextn_predict_layers > 0; }
  bool has_experts(int64_t layer) const {
    return layer < num_hidden_layers ? moe.in_layer(layer) : moe.num_experts > 0;
  }
  /// What messages, traces and random numbers call a layer.
  std::string place(int64_t layer) const {
    return layer < num_hidden_layers ? "layers." + std::to_string(layer)
                                     : "mtp." + std::to_string(layer - num_hidden_layers);
  }

  bool rotates(int64_t layer) const {
    const size_t i = static_cast<size_t>(layer);
    return traits().positions == PositionEmbedding::rotary &&
           (i >= no_rope_layers.size() || no_rope_layers[i] != 0);
  }
  /// Whether the layer's queries and keys are turned by rope_local_base_freq.
  bool rotates_locally(int64_t layer) const { return rope_local_base_freq > 0 && window(layer) > 0; }
  /// Channels of a head that rotate: the first ones, with latent attention the last.
  int64_t rotary_dim() const {
    if (traits().latent_attention) return latent.qk_rope_head_dim;
    return static_cast<int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
  }
  /// Keys that a query of the layer sees, its own among them; 0: all before it.
  int64_t window(int64_t layer) const {
    const size_t i = static_cast<size_t>(layer);
    const bool slides =
        sliding_window && (i >= layer_types.size() || layer_types[i] == LayerType::sliding_attention);
    return slides ? *sliding_window : 0;
  }

  /// Channels of a value.
  int64_t value_dim() const { return traits().latent_attention ? latent.v_head_dim : head_dim; }
  /// AttentionShape's; 0: 1 / sqrt(head_dim).
  double attention_scale() const {
    if (traits().latent_attention && rope_scaling.type == RopeType::yarn) {
      const double m = yarn_mscale(rope_scaling.factor, rope_scaling.mscale_all_dim.value_or(0));
      return m * m / std::sqrt(static_cast<double>(head_dim));
    }
    const double by = query_pre_attn_scalar;
    return by == 0 || by == static_cast<double>(head_dim) ? 0 : 1 / std::sqrt(by);
  }

  /// Experts are chosen by score + bias.
  bool has_correction_bias() const {
    return moe.num_experts > 0 && (moe.bias_update_rate > 0 || traits().correction_bias);
  }

  const ModelTraits& traits() const { return family->traits; }
  const ParameterNames& names() const { return family->names; }
};

/// Of any layer; 0 where none has one.
inline int64_t widest_window(const ModelConfig& model) {
  int64_t window = 0;
  for (int64_t i = 0; i < model.num_hidden_layers; ++i) window = std::max(window, model.window(i));
  return window;
}

}  // namespace ltrain
