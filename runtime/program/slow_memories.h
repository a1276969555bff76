// Where what a rank offloads lies: made once for a run, by what the recipe offloads.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/program/train_program.h"

namespace ltrain {

/// Folders, where steps run on the CPU.
struct SlowFolders {
  std::string states, params, activations;
};

class SlowMemories {
 public:
  /// `activation_bytes`: as planned.
  SlowMemories(const ProgramOptions& options, DeviceKind device, const SlowFolders& folders,
               int64_t activation_bytes);
  /// On meta.
  explicit SlowMemories(MetaTrace& trace);
  SlowPlaces places() const;
  void synchronize() const;
  /// "offload.params: io_uring, past the page cache", one for each.
  std::vector<std::string> notes() const;

 private:
  std::unique_ptr<SlowMemory> states_, params_, activations_;
  int64_t activation_bytes_ = INT64_MAX;
};

}  // namespace ltrain
