// Names of layers in messages, traces and plans, and what they stand for.
#pragma once
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace ltrain {

inline constexpr std::string_view kEmbeddingLayer = "embedding", kHeadLayer = "head",
                                  kBlockPrefix = "layers.", kMtpPrefix = "mtp.";

enum class LayerKind : uint8_t {
  other,  ///< work of a step outside the model: loss, gradients, optimizer
  embedding,
  block,
  mtp,  ///< module of multi-token prediction
  head
};

struct LayerOf {
  LayerKind kind = LayerKind::other;
  int64_t index = 0;  ///< number of the block or the module
};

/// The layer of a name such as "layers.3.mlp".
inline LayerOf layer_of(std::string_view name) {
  if (name == kEmbeddingLayer) return {LayerKind::embedding};
  if (name == kHeadLayer) return {LayerKind::head};
  LayerOf layer;
  for (const auto& [prefix, kind] :
       {std::pair(kBlockPrefix, LayerKind::block), {kMtpPrefix, LayerKind::mtp}}) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view number = name.substr(prefix.size());
    const auto end = std::from_chars(number.data(), number.data() + number.size(), layer.index);
    if (end.ec == std::errc()) layer.kind = kind;
  }
  return layer;
}

}  // namespace ltrain
