// What of a recipe lies outside of a rank's memory, where, and what it takes.
#include <algorithm>

#include "runtime/plan/plan.h"

namespace ltrain {

ActivationOffloadOptions activation_offload(const Recipe& r) {
  ActivationOffloadOptions o;
  if (!r.offload.activations.on()) return o;
  o.fraction = r.offload.activations.fraction;
  o.input = true;
  for (int i = 0; i < kBlockTensors; ++i) o.tensors.add(static_cast<BlockTensor>(i));
  BlockTensorSet named;
  for (const auto& [name, fate] : r.recompute.tensors)
    for (int i = 0; i < kBlockTensors; ++i)
      if (const BlockTensor t = static_cast<BlockTensor>(i); block_tensor_name(t) == name) {
        if (fate == TensorFate::offload) named.add(t);
        if (fate == TensorFate::keep) o.tensors.remove(t);
      }
  if (named.bits) o.tensors = named, o.input = false;
  return o;
}

void add_offloaded(RankPlan& plan, bool cuda) {
  int64_t files = 0, touched = 0;
  for (const auto& [what, bytes] : offloaded_text(plan.offloaded)) {
    if (cuda) plan.outside.push_back({"offloaded " + what, bytes, "exact: pinned"});
    ++files;
  }
  for (int64_t bytes : {plan.offloaded.optimizer, plan.offloaded.params})
    touched += std::min(bytes, kSlowTouch);
  if (cuda || files == 0) return;
  plan.outside.push_back({"buffers of files", files * kFileBuffers, "exact"});
  if (touched > 0) plan.outside.push_back({"pages of files", touched, "formula"});
}

SlowFolders slow_folders(const Recipe& r) {
  return {r.offload.optimizer.path.value_or(""), r.offload.params.path.value_or(""),
          r.offload.activations.path.value_or("")};
}

std::vector<std::pair<std::string, int64_t>> offloaded_text(const OffloadedBytes& b) {
  std::vector<std::pair<std::string, int64_t>> out;
  if (b.optimizer > 0) out.emplace_back("optimizer states", b.optimizer);
  if (b.params > 0) out.emplace_back("weights", b.params);
  if (b.activations > 0) out.emplace_back("activations", b.activations);
  return out;
}

}  // namespace ltrain
