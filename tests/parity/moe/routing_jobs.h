// Small jobs that record their routers' choices, or replay such a record.
#pragma once
#include <string>

#include "runtime/routing/step_routing.h"
#include "tests/support/tiny_job.h"

namespace ltrain::test {

/// Trains with the routing of each rank in `folders`.
inline TinyResult train_with_routing(TinyOptions o, const RoutingFolders& folders) {
  o.choices = folders.replay.empty() ? ProgramOptions::Choices::record : ProgramOptions::Choices::replay;
  const auto of_rank = [&](const TinyRank& at) {
    return StepRouting(at.program, tiny_mesh(o, at.rank), folders);
  };
  TinyHooks hooks;
  hooks.before_step = [&](const TinyRank& at, int64_t step, const std::vector<HostBatch>& batches) {
    of_rank(at).before_step(step, (step - 1) * o.global_batch, o.global_batch, batches);
  };
  hooks.after_step = [&](const TinyRank& at, int64_t step, const std::vector<HostBatch>& batches) {
    of_rank(at).after_step(step, batches);
  };
  return train_tiny(o, {}, hooks);
}

inline TinyResult record_routing(const TinyOptions& o, const std::string& folder) {
  return train_with_routing(o, {.record = folder, .replay = ""});
}
inline TinyResult replay_routing(const TinyOptions& o, const std::string& folder) {
  return train_with_routing(o, {.record = "", .replay = folder});
}

}  // namespace ltrain::test
