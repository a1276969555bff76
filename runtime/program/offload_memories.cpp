#include "runtime/program/offload_memories.h"

namespace ltrain {

OffloadMemories::OffloadMemories(const ProgramOptions& o, DeviceKind device, const OffloadFolders& folders,
                                 int64_t activation_bytes)
    : activation_bytes_(activation_bytes) {
  const auto make = [&](const std::string& folder, const OffloadUse& use) {
    return folder.empty() ? make_host_memory(device, use) : make_file_memory(device, folder, use);
  };
  if (o.offload.fraction > 0) states_ = make(folders.states, {"offload.optimizer", "optimizer states"});
  if (o.offload.params > 0) params_ = make(folders.params, {"offload.params", "weights"});
  if (o.activations.any()) activations_ = make(folders.activations, {"offload.activations", "activations"});
}

OffloadMemories::OffloadMemories(MetaTrace& trace, DeviceKind device, const OffloadFolders& folders) {
  const auto make = [&](const std::string& folder, const char* key) {
    return make_meta_offload_memory(trace, key, device != DeviceKind::cpu && !folder.empty());
  };
  states_ = make(folders.states, "offload.optimizer");
  params_ = make(folders.params, "offload.params");
  activations_ = make(folders.activations, "offload.activations");
}

void OffloadMemories::synchronize() const {
  for (const auto* m : {&states_, &params_, &activations_})
    if (*m) (*m)->synchronize();
}

std::vector<std::string> OffloadMemories::notes() const {
  std::vector<std::string> all;
  for (const auto* m : {&states_, &params_, &activations_})
    if (*m && !(*m)->how().empty()) all.push_back((*m)->stream().name() + ": " + (*m)->how());
  return all;
}

OffloadTargets OffloadMemories::places() const {
  return {states_.get(), params_.get(), activations_.get(), activation_bytes_};
}

}  // namespace ltrain
