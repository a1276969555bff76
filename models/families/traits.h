// Traits of a family that affect its computation. Layers read these traits and never a family's name. Every
// value of every trait has a layer that obeys it: a trait is added together with the layer that reads it, its
// placement under every mode of tensor parallelism, and a case in tests/models/gradient_test.cpp. A behaviour
// without such a layer has no field, so that no family can set it and be ignored. Settings of a config.json
// for single layers (windows, layers without positions) or numbers (soft-caps) are in ModelConfig.
#pragma once
#include <cstdint>
#include <optional>

#include "base/enum_names.h"
#include "kernels/norm/norm.h"

namespace ltrain {

/// gelu: down(gelu_tanh(up x)). swiglu: down(silu(gate x) * up x). geglu: down(gelu_tanh(gate x) * up x).
/// gelu_erf, geglu_erf: with the exact GELU. clamped_swiglu: kernels/elementwise/activation.h.
enum class FeedForward : uint8_t { gelu, gelu_erf, swiglu, geglu, geglu_erf, clamped_swiglu };
constexpr bool has_gate(FeedForward f) { return f != FeedForward::gelu && f != FeedForward::gelu_erf; }

/// Activation function of a feed-forward, by transformers' names. gelu: the exact form, by erf.
enum class Activation : uint8_t { silu, gelu_tanh, gelu };
LT_ENUM_NAMES(Activation, {Activation::silu, "silu"}, {Activation::gelu_tanh, "gelu_pytorch_tanh"},
              {Activation::gelu, "gelu"});

/// None for a feed-forward with an activation function of its own.
constexpr std::optional<Activation> activation_of(FeedForward f) {
  switch (f) {
    case FeedForward::swiglu:
      return Activation::silu;
    case FeedForward::gelu:
    case FeedForward::geglu:
      return Activation::gelu_tanh;
    case FeedForward::gelu_erf:
    case FeedForward::geglu_erf:
      return Activation::gelu;
    case FeedForward::clamped_swiglu:
      return std::nullopt;
  }
  return std::nullopt;
}

/// `f` with another activation function; `f` itself if there is no such feed-forward.
constexpr FeedForward with_activation(FeedForward f, Activation a) {
  if (!activation_of(f) || (a == Activation::silu && !has_gate(f))) return f;
  if (!has_gate(f)) return a == Activation::gelu ? FeedForward::gelu_erf : FeedForward::gelu;
  return a == Activation::silu   ? FeedForward::swiglu
         : a == Activation::gelu ? FeedForward::geglu_erf
                                 : FeedForward::geglu;
}

/// learned: a table added to the embedding. rotary: queries and keys of every layer are rotated (RoPE).
enum class PositionEmbedding : uint8_t { learned, rotary };

/// Scaling of rotary frequencies for longer sequences: transformers' rope_type
/// (models/attention/rope_angles.h).
enum class RopeType : uint8_t { none, linear, llama3, yarn, longrope };
LT_ENUM_NAMES(RopeType, {RopeType::none, "default"}, {RopeType::linear, "linear"},
              {RopeType::llama3, "llama3"}, {RopeType::yarn, "yarn"}, {RopeType::longrope, "longrope"});

/// RMSNorm of queries and keys before their rotation: of each head, or of the full projection.
enum class QueryKeyNorm : uint8_t { none, head, projection };

/// before: norm of a sublayer's input. after: norm of its output, before the residual addition
/// (arXiv:2501.00656). both: both norms, with separate weights (arXiv:2408.00118).
enum class NormPlacement : uint8_t { before, after, both };

struct ModelTraits {
  NormKind norm = NormKind::rms;  ///< norms of attention, feed-forward and output layer
  NormPlacement norm_placement = NormPlacement::before;  ///< except for the output layer's norm
  bool norm_scales_by_one_more = false;  ///< norms scale by 1 + weight, with weights initialized to 0
  bool scaled_embedding = false;  ///< embedding rows are multiplied by sqrt(hidden_size), before dropout
  PositionEmbedding positions = PositionEmbedding::rotary;
  bool qkv_bias = false, attention_output_bias = false;
  /// a logit for each head that takes a share of the softmax (arXiv:2309.17453)
  bool attention_sinks = false;
  bool latent_attention =
      false;  ///< queries, keys and values from latents (models/attention/latent_projections.h)
  bool interleaved_rotation = false;  ///< neighbouring channels rotate as pairs (kernels/attention/rope.h)
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  FeedForward feed_forward = FeedForward::swiglu;
  bool feed_forward_bias = false;
  /// experts are chosen by score + bias, even if a run does not update the bias
  bool correction_bias = false;
  bool router_bias = false, expert_bias = false;  ///< biases of the linear layers of an MoE layer
  /// Modules behind the last layer may predict more tokens (models/decoder/multi_token_prediction.h).
  bool multi_token_prediction = false;

  bool operator==(const ModelTraits&) const = default;
};

}  // namespace ltrain
