// What sets a family of models apart in what it computes. Layers read these traits and never a family's name.
// Every trait here has a layer that obeys each of its values: a trait is added together with the layer that
// reads it, its placement under every mode of tensor parallelism, and a case in
// tests/models/gradient_test.cpp. What no layer obeys yet (windows, soft-caps, sinks, norms after a sublayer,
// a scale of the embedding) has no field, so that no family can set it and be ignored.
#pragma once
#include <cstdint>

#include "kernels/norm/norm.h"

namespace ltrain {

/// gelu: down(gelu_tanh(up x)). swiglu: down(silu(gate x) * up x).
enum class FeedForward : uint8_t { gelu, swiglu };

/// learned: a table that is added to the embedding. rotary: queries and keys are turned (RoPE), of every
/// layer.
enum class PositionEmbedding : uint8_t { learned, rotary };

/// RMSNorm of queries and keys before their rotation: of each head, or of the whole projection.
enum class QueryKeyNorm : uint8_t { none, head, projection };

struct ModelTraits {
  NormKind norm = NormKind::rms;  ///< before attention, before the feed-forward, before the output layer
  PositionEmbedding positions = PositionEmbedding::rotary;
  bool qkv_bias = false, attention_output_bias = false;
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  FeedForward feed_forward = FeedForward::swiglu;
  bool feed_forward_bias = false;

  bool operator==(const ModelTraits&) const = default;
};

}  // namespace ltrain
