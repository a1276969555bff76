#include "models/layers/recompute.h"

#include <algorithm>

namespace ltrain {

std::string_view block_tensor_name(BlockTensor t) {
  constexpr std::string_view names[kBlockTensors] = {
      "attention_norm",  "qkv",        "attention",      "residual",     "mlp_norm",
      "permuted_tokens", "mlp_hidden", "mlp_activation", "expert_output"};
  return names[static_cast<int>(t)];
}

std::string describe(const RecomputeOptions& o) {
  if (!o.any()) return "nothing";
  std::string text;
  if (o.run > 0) text = o.run == 1 ? "layers" : "runs of " + std::to_string(o.run) + " layers";
  for (int i = 0; i < kBlockTensors && o.run == 0; ++i)
    if (const BlockTensor t = static_cast<BlockTensor>(i); o.tensors.has(t))
      text += (text.empty() ? "" : ", ") + std::string(block_tensor_name(t));
  return o.layers < 0 ? text : text + " of the first " + std::to_string(o.layers) + " layers of a stage";
}

std::vector<LayerRun> layer_runs(const RecomputeOptions& o, int64_t layers) {
  const int64_t about = o.layers < 0 ? layers : std::min(layers, o.layers);
  std::vector<LayerRun> runs;
  for (int64_t at = 0; at < layers;) {
    LayerRun r;
    r.first = at;
    if (at < about && o.run > 0) {
      r.recompute = true;
      r.count = std::min(o.run, about - at);
    } else if (at < about) {
      r.tensors = o.tensors;
      r.compressed = o.compressed;
    }
    at += r.count;
    runs.push_back(r);
  }
  return runs;
}

}  // namespace ltrain
