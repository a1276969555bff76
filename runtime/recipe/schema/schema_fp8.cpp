// Keys of FP8 matmuls.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {
void add_fp8_keys(std::vector<Key>& t) {
  const auto add = [&](Key key, std::string when = "precision: fp8",
                       std::function<bool(const Fp8Settings&)> more = {}) {
    key.when(std::move(when), true,
             [more](const Recipe& r) { return computes_in(r, Precision::fp8) && (!more || more(r.fp8)); });
    t.push_back(std::move(key));
  };
  const auto delayed = [](const Fp8Settings& s) { return s.recipe == Fp8Recipe::delayed; };
  add(choice<bool>("fp8.format", LT_MEMBER(fp8.hybrid), {{"hybrid", true}, {"e4m3", false}}, {},
                   "hybrid: gradients in e5m2, inputs and weights in e4m3. e4m3: all in e4m3.")
          .alias({"fp8_format"}));
  add(choice("fp8.recipe", LT_MEMBER(fp8.recipe), {"mxfp8"},
             "Source of the scales. delayed: the largest magnitudes of earlier steps. tensorwise: the "
             "largest magnitude of the tensor. blockwise: that of each block of 1 x 128 (weights 128 x 128).")
          .alias({"fp8_recipe"}));
  add(integer("fp8.amax_history_len", LT_MEMBER(fp8.history), "Steps in the history of delayed scaling.")
          .between(1, 65536)
          .alias({"fp8_amax_history_len"}),
      "fp8.recipe: delayed", delayed);
  add(choice<bool>("fp8.amax_compute_algo", LT_MEMBER(fp8.most_recent),
                   {{"max", false}, {"most_recent", true}}, {},
                   "Value of the history that sets the scale: the maximum, or the most recent.")
          .alias({"fp8_amax_compute_algo"}),
      "fp8.recipe: delayed", delayed);
  add(integer("fp8.margin", LT_MEMBER(fp8.margin), "Scales leave room for values 2^margin times larger.")
          .between(0, 16)
          .alias({"fp8_margin"}),
      "fp8.recipe: delayed or tensorwise",
      [](const Fp8Settings& s) { return s.recipe != Fp8Recipe::blockwise; });
  add(texts(
      "fp8.keep", LT_MEMBER(fp8.keep), "pattern", "[\"model.layers.0.*\", \"*.mlp.down_proj.weight\"]",
      "Weights whose linear layers stay in bf16: patterns of full names, * for any characters, ? for one."));
  add(integer("fp8.first_layers_bf16", LT_MEMBER(fp8.first_layers),
              "Number of first layers that stay in bf16.")
          .between(0, 4096)
          .alias({"num_layers_at_start_in_bf16"}));
  add(integer("fp8.last_layers_bf16", LT_MEMBER(fp8.last_layers), "Number of last layers that stay in bf16.")
          .between(0, 4096)
          .alias({"num_layers_at_end_in_bf16"}));
  add(truth("fp8.output_layer", LT_MEMBER(fp8.output_layer),
            "The output layer multiplies in FP8 too: logits, and their gradients."));
}

}  // namespace ltrain::recipe
