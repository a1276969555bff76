// Saving of checkpoints in two phases. First the state is copied to a staging buffer while the step waits.
// Then all ranks write, hash, sync and commit it on a background thread while training continues. The copy
// also checks the state: a state with an element that is not finite is never written.
//
// A checkpoint is written to step-....tmp-<nonce>. Manifest and COMMIT are written last. Then the folder is
// renamed and its parent synced. A failure before the rename leaves debris that a resume ignores. The first
// commit of a run sets superseded checkpoints aside (store.h). Every commit sets aside a folder of the same
// name.
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

/// A part of a logical tensor that this rank writes. The slices of all ranks must cover each tensor exactly
/// once.
struct StateSlice {
  std::string name;
  DType dtype = DType::f32;
  Slice slice;
  const void* data = nullptr;  ///< slice.elements() consecutive elements
  /// Never changes in this run: a frozen weight. Such slices of a rank have a file of their own, which later
  /// checkpoints of the run have as a hard link, where the file system has links.
  bool constant = false;
};

struct CheckpointOptions {
  std::string folder;  ///< OUTPUT_DIR/checkpoints; shared by all hosts
  KeepRule keep;       ///< with keep.best, the link `best` points to that checkpoint
  bool async_save = true;
  int64_t begun = 0;                 ///< step that the run starts from; 0: a fresh start
  int64_t last_step = INT64_MAX;     ///< last step that the run can reach
  std::vector<std::string> damaged;  ///< names of folders whose damage shows only in hashes
  int64_t planned_saves =
      -1;  ///< number of saves that this run will make, if known, for the check of free space; -1: unknown
  void* staging =
      nullptr;  ///< staging_bytes() bytes that outlive the writer; null: the writer allocates them
  std::function<void()> touched;  ///< called after each kOffloadTouch bytes read from the slices; optional
  /// Stream that copies the slices of a save to the host; null: slices are in host memory.
  Stream* device = nullptr;
};

/// Result of a save. It is the same on every rank, except for the seconds.
struct SaveReport {
  int64_t step = 0;
  std::string path;
  bool ok = false;
  std::string error;               ///< if not ok: rank, location, errno, and advice
  int64_t bytes = 0;               ///< total of all ranks
  int64_t linked_bytes = 0;        ///< part that an earlier checkpoint has, too: links
  double stall_seconds = 0;        ///< time that the step waited for the previous save and for the copy
  double write_seconds = 0;        ///< time in the background
  std::vector<std::string> notes;  ///< "waited 1.2 s for the save of step 100", rotation
};

class CheckpointWriter {
 public:
  /// Collective. `control` and `stream` must not be used by others while the writer exists. Checks that the
  /// slices of all ranks cover every tensor, takes the folder's lock, refuses a pinned checkpoint that the
  /// run would reach, removes debris, and checks the free space. Throws Error on every rank if one of these
  /// fails. Slices of later saves may differ only in their pointers.
  CheckpointWriter(CheckpointOptions options, const std::vector<StateSlice>& slices, Communicator& control,
                   Stream& stream);
  ~CheckpointWriter();  ///< waits for the save in flight

  /// Bytes of host staging memory of a writer for these slices.
  static int64_t staging_bytes(const std::vector<StateSlice>& slices);

  /// Collective. Waits for the previous save first. Storage errors do not throw; take_reports() returns them.
  /// Returns "", or which part of the state is not finite, with the same text on every rank. In that case
  /// nothing is written and there is no report.
  std::string save(const CheckpointInfo& info, const std::vector<StateSlice>& slices);
  /// Waits until the save in flight is committed or has failed.
  void wait();
  /// Reports of saves that ended since the last call, oldest first. Does not block.
  std::vector<SaveReport> take_reports();
  /// Size of one checkpoint on all ranks, without the manifest.
  int64_t bytes() const { return total_bytes_; }
  const std::vector<std::string>& notes() const { return notes_; }  ///< notes of the start: removed debris

 private:
  struct Shared;
  void prepare();
  void write(CheckpointInfo info, SaveReport report);
  void write_steps(const CheckpointInfo& info, SaveReport& report);
  /// Rank 0: merges the tensors of all ranks, takes the folder, and checks its space. Throws Error.
  void take_folder(const std::vector<std::string>& plans);
  void check_space(const std::vector<Candidate>& there) const;
  /// Rank 0: makes the folder of a save. Returns a text for all ranks: its name, or the error.
  std::string make_temporary(const std::string& path) const;
  void rotate_old(SaveReport& report) const;  ///< rank 0: removes older checkpoints
  /// Number of this rank's file: 0 for slices that change, 1 for constant ones.
  int file_of(const StateSlice& s) const { return files_per_rank_ > 1 && s.constant ? 1 : 0; }
  std::string file_name(int rank, int file) const;
  /// Writes one of this rank's files, or links the one of an earlier save. Returns "BYTES HASH".
  std::string write_file(const std::string& folder, int file, SaveReport& report);
  /// True if the staging buffer has the slice from an earlier save.
  bool is_staged(const StateSlice& s) const { return s.constant && has_constant_; }
  std::string commit(const CheckpointInfo& info, const std::vector<std::string>& entries,
                     const std::string& temporary, SaveReport& report);
  int64_t copy(const StateSlice& from, char* to) const;
  std::string not_finite(const std::vector<int64_t>& counts);
  void make_room(SaveReport& report);
  bool is_damaged(const Candidate& checkpoint) const;  ///< is in CheckpointOptions::damaged

  CheckpointOptions options_;
  Communicator& control_;
  Stream& stream_;
  std::vector<StateSlice> slices_;  // data points into the staging buffer
  std::unique_ptr<char[]> own_staging_;
  std::unique_ptr<FolderLock> lock_;              // rank 0
  std::map<std::string, TensorParts> tensors_;    // rank 0: tensors of all ranks
  std::vector<std::string> keys_;                 // keys of slices_ in the shard
  int64_t total_bytes_ = 0, constant_bytes_ = 0;  // sums over ranks: all slices, constant ones
  int64_t shard_bytes_ = 0;
  int files_per_rank_ = 1;                      // 2 if a rank has constant slices
  bool has_constant_ = false;                   // constant slices are in the staging buffer
  std::string constant_path_, constant_entry_;  // this rank's committed file of them, and its "BYTES HASH"
  int64_t committed_step_ = -1;
  std::set<std::string> written_;  // rank 0: names of this run's checkpoints
  std::vector<std::string> notes_;
  std::unique_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace ltrain
