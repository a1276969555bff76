// Keys of quantization-aware training.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {

void add_quantization_keys(std::vector<Key>& t) {
  t.push_back(
      choice("quantization.weights", LT_MEMBER(quantization.weights), {},
             "Codes of the weights of linear layers in every step: int4, int8, or fp8 (e4m3), times a "
             "scale. Gradients go to the fp32 master weights unchanged. none: weights are not quantized."));
  const auto add = [&](Key k) {
    k.when("quantization.weights", true, [](const Recipe& r) { return r.quantization.on(); });
    t.push_back(std::move(k));
  };
  add(integer(
          "quantization.group_size", LT_MEMBER(quantization.group_size),
          "Weights along the input dim with one scale: 32, 64 or 128; 0: one scale for each row, an output "
          "of the layer.")
          .at_least(0));
  add(texts(
      "quantization.match", LT_MEMBER(quantization.match), "pattern", "[\"*.mlp.*\"]",
      "Matrices of linear layers that are quantized: patterns of full names, * for any characters, ? for "
      "one. Embeddings, norms, biases, routers, experts and the projection to the vocabulary are not."));
  add(texts("quantization.ignore", LT_MEMBER(quantization.ignore), "pattern", "[\"*.down_proj.*\"]",
            "Matrices that quantization.match has and that are not quantized."));
}

}  // namespace ltrain::recipe
