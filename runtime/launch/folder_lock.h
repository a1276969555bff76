// A lock on a folder that prevents two runs from writing to it.
#pragma once
#include <string>

#include "base/fd.h"

namespace ltrain {

/// Lock of FOLDER/.lock, held until destruction and by every process that has inherited the descriptor. The
/// system releases it when the last of them ends, however it ends, also over NFS. On a file system without
/// locks the folder is not locked.
class FolderLock {
 public:
  /// Takes the lock of an existing folder. `use`: "writes its checkpoints here". If another process has the
  /// lock, throws Error (storage) that names the process, and changes nothing.
  FolderLock(const std::string& folder, const std::string& use);
  bool held() const { return held_; }
  int descriptor() const { return fd_.get(); }

 private:
  Fd fd_;
  bool held_ = false;
};

/// Locks a run's folder, and creates it if needed. Call it before anything else of the run is written.
FolderLock lock_output(const std::string& output_dir);

}  // namespace ltrain
