// Saves checkpoints in two phases: the state is copied into a staging buffer while the step waits, then
// written, hashed, synced and committed by all ranks together on a background thread while training goes on.
// The copy is where the state's health is seen: what has an element that is not finite is never written.
//
// A checkpoint is written under step-....tmp-<nonce>; manifest and COMMIT come last; then the folder is
// renamed and its parent synced. Whatever happens before the rename leaves debris that no resume looks at.
// The first commit of a run sets aside what it leaves behind (store.h), and every commit what has its name.
#pragma once
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/communicator.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/store.h"
#include "runtime/launch/folder_lock.h"

namespace ltrain {

/// A part of a logical tensor that this rank writes. Over all ranks the slices of a name make it up exactly
/// once.
struct StateSlice {
  std::string name;
  DType dtype = DType::f32;
  Slice slice;
  const void* data = nullptr;  ///< slice.elements() consecutive elements
};

struct CheckpointOptions {
  std::string folder;       ///< OUTPUT_DIR/checkpoints; shared by all hosts
  int64_t keep_latest = 2;  ///< 0: all
  bool keep_best = false;   ///< and the one of the lowest held-out loss, which the link `best` points to
  bool async_save = true;
  int64_t begun = 0;                 ///< the step that the run goes on from; 0: a fresh start
  int64_t last_step = INT64_MAX;     ///< that the run can come to
  std::vector<std::string> damaged;  ///< folders whose damage shows in hashes alone, by name
  int64_t planned_saves =
      -1;  ///< saves that this run will make, when known: the space that is asked for at start
  void* staging =
      nullptr;  ///< staging_bytes() bytes that outlive the writer; null: the writer allocates them
  std::function<void()> touched;  ///< called after kOffloadTouch bytes of the slices were read; optional
  Stream* device = nullptr;  ///< that copies the slices of a save to the host; null: they are host memory
};

/// What became of a save; the same on every rank but for the seconds.
struct SaveReport {
  int64_t step = 0;
  std::string path;
  bool ok = false;
  std::string error;               ///< when not ok: who, where, errno, and what would help
  int64_t bytes = 0;               ///< of all ranks
  double stall_seconds = 0;        ///< that the step waited: for the save before, and for the copy
  double write_seconds = 0;        ///< in the background
  std::vector<std::string> notes;  ///< "waited 1.2 s for the save of step 100", rotation
};

class CheckpointWriter {
 public:
  /// Collective. `control` and `stream` are used by nobody else as long as the writer lives. Checks that the
  /// slices of all ranks make up every tensor, takes the folder's lock, refuses a pinned checkpoint that the
  /// run would come to, sweeps debris, and checks the free space; Error on every rank when one of these
  /// fails. Slices of later saves are the same but for their pointers.
  CheckpointWriter(CheckpointOptions options, const std::vector<StateSlice>& slices, Communicator& control,
                   Stream& stream);
  ~CheckpointWriter();  ///< waits for the save in flight

  /// Bytes of host memory that a writer of these slices stages in.
  static int64_t staging_bytes(const std::vector<StateSlice>& slices);

  /// Collective. A save in flight is waited for first. Never throws for what the storage does: see
  /// take_reports(). Returns "", or what of the state is not finite, the same text on every rank: nothing is
  /// written then, and there is no report.
  std::string save(const CheckpointInfo& info, const std::vector<StateSlice>& slices);
  /// Until the save in flight is committed or has failed.
  void wait();
  /// Reports of saves that ended since the last call, oldest first. Does not block.
  std::vector<SaveReport> take_reports();
  int64_t bytes() const { return total_bytes_; }  ///< of one checkpoint, all ranks, without the manifest
  const std::vector<std::string>& notes() const { return notes_; }  ///< of the start: debris that was removed

 private:
  struct Shared;
  void prepare();
  void write(CheckpointInfo info, SaveReport report);
  void write_steps(const CheckpointInfo& info, SaveReport& report);
  std::string commit(const CheckpointInfo& info, const std::vector<std::string>& entries,
                     const std::string& temporary, SaveReport& report);
  int64_t copy(const StateSlice& from, char* to) const;
  std::string not_finite(const std::vector<int64_t>& counts);
  void make_room(SaveReport& report);
  bool is_damaged(const Candidate& checkpoint) const;  ///< CheckpointOptions::damaged has it

  CheckpointOptions options_;
  Communicator& control_;
  Stream& stream_;
  std::vector<StateSlice> slices_;  // data points into the staging buffer
  std::unique_ptr<char[]> own_staging_;
  std::unique_ptr<FolderLock> lock_;            // rank 0
  std::map<std::string, TensorParts> tensors_;  // rank 0: of all ranks
  std::vector<std::string> keys_;               // of slices_, in the shard
  int64_t total_bytes_ = 0, shard_bytes_ = 0;
  int64_t committed_step_ = -1;
  std::set<std::string> written_;  // rank 0: names of this run's checkpoints
  std::vector<std::string> notes_;
  std::unique_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace ltrain
