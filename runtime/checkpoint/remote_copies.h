// checkpoint.remote: a copy of each checkpoint in a bucket, uploaded by rank 0 while training continues.
#pragma once
#include <string>
#include <vector>

#include "runtime/checkpoint/after_save.h"
#include "runtime/checkpoint/remote_checkpoints.h"

namespace ltrain {

class RemoteCopies {
 public:
  struct Options {
    std::string url;
    KeepRule keep;          ///< also for the copies
    int64_t begun = 0;      ///< step that the run starts from; 0: a fresh start
    int64_t last_step = 0;  ///< last step that the run can reach
  };
  /// Takes the URL for this run. Throws Error if the store refuses, or a copy with KEEP is in the way.
  explicit RemoteCopies(const Options& options);

  const std::vector<std::string>& notes() const { return notes_; }  ///< notes of the start
  void saved(SavedCheckpoint checkpoint) { uploads_.saved(std::move(checkpoint)); }
  /// Returns whether an upload reads the checkpoint of this step now, or will next. For any thread.
  bool uses(int64_t step) { return uploads_.uses(step); }
  std::vector<std::string> take_lines() { return uploads_.take_lines(); }
  /// Waits for the last upload. Returns take_lines().
  std::vector<std::string> finish() { return uploads_.finish(); }
  /// Why the last upload failed; empty: it did not. After finish().
  const std::string& last_error() const { return last_error_; }

 private:
  std::vector<std::string> upload(const std::stop_token& stop, const SavedCheckpoint& checkpoint);

  Options options_;
  RemoteCheckpoints remote_;
  std::vector<std::string> notes_;
  std::string last_error_;
  AfterSave uploads_;  // last: its thread uses the members above
};

}  // namespace ltrain
