// Offload memories of a rank, made once per run from the recipe's offload keys.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/program/train_program.h"

namespace ltrain {

/// Folders for offload files; an empty one selects host memory.
struct OffloadFolders {
  std::string states, params, activations;
};

class OffloadMemories {
 public:
  /// `activation_bytes`: planned size of the offloaded activations.
  OffloadMemories(const ProgramOptions& options, DeviceKind device, const OffloadFolders& folders,
                  int64_t activation_bytes);
  /// For a pass on the meta device.
  OffloadMemories(MetaTrace& trace, DeviceKind device, const OffloadFolders& folders);
  OffloadTargets places() const;
  void synchronize() const;
  /// One note per memory: "offload.params: io_uring, past the page cache".
  std::vector<std::string> notes() const;

 private:
  std::unique_ptr<OffloadMemory> states_, params_, activations_;
  int64_t activation_bytes_ = INT64_MAX;
};

}  // namespace ltrain
