// Offload in a plan: offloaded tensors, their targets, and the memory and time for them.
#include <algorithm>
#include <tuple>

#include "runtime/plan/make_plan.h"
#include "runtime/plan/plan_print.h"
#include "runtime/program/recipe_program.h"

namespace ltrain {

void add_offloaded(RankPlan& plan, const Recipe& recipe) {
  const bool cuda = device_of(recipe) == DeviceKind::cuda;
  const OffloadFolders folders = offload_folders(recipe);
  int64_t files = 0, touched = 0;
  for (const auto& [what, bytes, folder] :
       {std::tuple("optimizer states", plan.offloaded.optimizer, &folders.states),
        std::tuple("weights", plan.offloaded.params, &folders.params),
        std::tuple("activations", plan.offloaded.activations, &folders.activations)}) {
    if (bytes == 0) continue;
    if (folder->empty()) {
      plan.outside.push_back({fmt::format("offloaded {}", what), bytes, "exact: pinned"});
      continue;
    }
    ++files;
    if (folder != &folders.activations) touched += std::min(bytes, kOffloadTouch);
  }
  if (files == 0) return;
  plan.outside.push_back({"buffers of files", files * kFileBuffers, "exact"});
  if (cuda) plan.outside.push_back({"pinned buffers of files", files * kPinnedFileBuffers, "exact"});
  if (touched > 0) plan.outside.push_back({"pages of files", touched, "formula"});
}

std::vector<std::pair<std::string, int64_t>> offloaded_text(const OffloadedBytes& b) {
  std::vector<std::pair<std::string, int64_t>> out;
  if (b.optimizer > 0) out.emplace_back("optimizer states", b.optimizer);
  if (b.params > 0) out.emplace_back("weights", b.params);
  if (b.activations > 0) out.emplace_back("activations", b.activations);
  return out;
}

}  // namespace ltrain
