// What of a recipe lies outside of a rank's memory, where, and what it takes.
#include <algorithm>

#include "runtime/plan/plan.h"

namespace ltrain {

void add_offloaded(RankPlan& plan, bool cuda) {
  int64_t files = 0, touched = 0;
  for (const auto& [what, bytes] : offloaded_text(plan.offloaded)) {
    if (cuda) plan.outside.push_back({"offloaded " + what, bytes, "exact: pinned"});
    ++files;
  }
  for (int64_t bytes : {plan.offloaded.optimizer, plan.offloaded.params})
    touched += std::min(bytes, kOffloadTouch);
  if (cuda || files == 0) return;
  plan.outside.push_back({"buffers of files", files * kFileBuffers, "exact"});
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
