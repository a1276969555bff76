#include "models/recompute.h"

#include <algorithm>

namespace ltrain {

std::string_view block_tensor_name(BlockTensor t) {
  constexpr std::string_view names[kBlockTensors] = {"attention_norm", "qkv",        "attention",     "residual",
                                                     "mlp_norm",       "mlp_hidden", "mlp_activation"};
  return names[static_cast<int>(t)];
}

std::vector<LayerRun> layer_runs(const RecomputeOptions& o, int64_t layers) {
  const int64_t about = o.layers < 0 ? layers : std::min(layers, o.layers);
  std::vector<LayerRun> runs;
  for (int64_t at = 0; at < layers;) {
    LayerRun r;
    r.first = at;
    if (at < about && o.run > 0) {
      r.again = true;
      r.count = std::min(o.run, about - at);
    } else if (at < about) {
      r.tensors = o.tensors;
    }
    at += r.count;
    runs.push_back(r);
  }
  return runs;
}

}  // namespace ltrain
