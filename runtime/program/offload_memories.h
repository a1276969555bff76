// Where what a rank offloads lies: made once for a run, by what the recipe offloads.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/program/train_program.h"

namespace ltrain {

/// Of files; empty where it is memory of the host.
struct OffloadFolders {
  std::string states, params, activations;
};

class OffloadMemories {
 public:
  /// `activation_bytes`: as planned.
  OffloadMemories(const ProgramOptions& options, DeviceKind device, const OffloadFolders& folders,
                  int64_t activation_bytes);
  /// On meta.
  OffloadMemories(MetaTrace& trace, DeviceKind device, const OffloadFolders& folders);
  OffloadTargets places() const;
  void synchronize() const;
  /// "offload.params: io_uring, past the page cache", one for each.
  std::vector<std::string> notes() const;

 private:
  std::unique_ptr<OffloadMemory> states_, params_, activations_;
  int64_t activation_bytes_ = INT64_MAX;
};

}  // namespace ltrain
