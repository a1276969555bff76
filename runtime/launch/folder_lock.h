// A lock on a folder, so that two runs do not write into one.
#pragma once
#include <string>

#include "base/fd.h"

namespace ltrain {

/// Of FOLDER/.lock, held until destruction, and by every process that has inherited the descriptor. The
/// system gives it up when the last of them ends, however it ends; over NFS too. Where a file system has no
/// locks there is none.
class FolderLock {
 public:
  /// The folder exists. `use`: "writes its checkpoints here". Throws Error (storage), and has changed
  /// nothing, when another process has the lock: which one.
  FolderLock(const std::string& folder, const std::string& use);
  bool held() const { return held_; }
  int descriptor() const { return fd_.get(); }

 private:
  Fd fd_;
  bool held_ = false;
};

/// The lock of a run's folder, which is made where there is none. Before anything else of the run is written.
FolderLock lock_output(const std::string& output_dir);

}  // namespace ltrain
