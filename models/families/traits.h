// What sets a family of models apart in what it computes. Layers read these traits and never a family's name.
// Every trait here has a layer that obeys each of its values: a trait is added together with the layer that
// reads it, its placement under every mode of tensor parallelism, and a case in
// tests/models/gradient_test.cpp. What no layer obeys has no field, so that no family can set it and be
// ignored. What a config.json says layer by layer (windows, layers without positions) or as a number
// (soft-caps) is in ModelConfig.
#pragma once
#include <cstdint>

#include "base/enum_names.h"
#include "kernels/norm/norm.h"

namespace ltrain {

/// gelu: down(gelu_tanh(up x)). swiglu: down(silu(gate x) * up x). geglu: down(gelu_tanh(gate x) * up x).
/// clamped_swiglu: kernels/elementwise/activation.h.
enum class FeedForward : uint8_t { gelu, swiglu, geglu, clamped_swiglu };
constexpr bool has_gate(FeedForward f) { return f != FeedForward::gelu; }

/// learned: a table that is added to the embedding. rotary: queries and keys are turned (RoPE), of every
/// layer.
enum class PositionEmbedding : uint8_t { learned, rotary };

/// How rotary frequencies are stretched for longer sequences: transformers' rope_type
/// (models/layers/rope_angles.h).
enum class RopeType : uint8_t { none, linear, llama3, yarn, longrope };
LT_ENUM_NAMES(RopeType, {RopeType::none, "default"}, {RopeType::linear, "linear"},
              {RopeType::llama3, "llama3"}, {RopeType::yarn, "yarn"}, {RopeType::longrope, "longrope"});

/// RMSNorm of queries and keys before their rotation: of each head, or of the whole projection.
enum class QueryKeyNorm : uint8_t { none, head, projection };

/// before: of what a sublayer reads. after: of what it gives, before that is added to the residual stream
/// (arXiv:2501.00656). both: of each, with weights of its own (arXiv:2408.00118).
enum class NormPlacement : uint8_t { before, after, both };

struct ModelTraits {
  NormKind norm = NormKind::rms;  ///< of attention, of the feed-forward, before the output layer
  NormPlacement norm_placement = NormPlacement::before;  ///< but for the output layer's
  bool norm_scales_by_one_more = false;  ///< norms scale by 1 + weight, and weights begin with 0
  bool scaled_embedding =
      false;  ///< rows of the embedding are multiplied by sqrt(hidden_size), before dropout
  PositionEmbedding positions = PositionEmbedding::rotary;
  bool qkv_bias = false, attention_output_bias = false;
  bool attention_sinks = false;  ///< a logit a head that takes a share of the softmax (arXiv:2309.17453)
  bool latent_attention =
      false;  ///< queries, keys and values from latents (models/layers/latent_projections.h)
  bool interleaved_rotation = false;  ///< pairs that rotate are neighbours (kernels/attention/rope.h)
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  FeedForward feed_forward = FeedForward::swiglu;
  bool feed_forward_bias = false;
  bool correction_bias = false;  ///< experts are chosen by score + bias, whether a run moves it or not
  bool router_bias = false, expert_bias = false;  ///< of the linear layers of an MoE layer
  /// There may be modules behind the last layer that predict more tokens
  /// (models/decoder/multi_token_prediction.h).
  bool multi_token_prediction = false;

  bool operator==(const ModelTraits&) const = default;
};

}  // namespace ltrain
