// A folder of checkpoints: step-00000100/ with shards, manifest.json and, written last, COMMIT. A resume
// ignores folders without a valid COMMIT.
//
// Apart from rotation, a run removes only files that it wrote. Two kinds of other folders are set aside: a
// folder with the name of a step that the run saves, and the later checkpoints when a run goes back to an
// older step. They get a name with the reason, such as superseded-step-00000100, which auto and rotation
// ignore.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/checkpoint/manifest.h"

namespace ltrain {

std::string checkpoint_name(int64_t step);  ///< "step-00000100"
inline const char* kManifestFile = "manifest.json";
inline const char* kCommitFile = "COMMIT";
inline const char* kBestLink = "best";  ///< symbolic link to the checkpoint with the lowest held-out loss
inline const char* kPinFile = "KEEP";   ///< created by a user to protect the checkpoint from rotation

/// Name for a checkpoint while it is written: PATH.tmp- and 16 digits.
std::string temporary_name(const std::string& path);

/// Contents of COMMIT for a manifest's text.
std::string commit_record(const std::string& manifest_text);

inline constexpr int64_t kMaxCommitBytes = 4096;
/// Throws Error (storage) unless `commit` is the COMMIT of this manifest. `checkpoint`: its path or URL.
void check_commit(const std::string& commit, const std::string& manifest, const std::string& checkpoint);
/// Throws Error (storage) unless the manifest's files have their sizes. `size_of`: -1 for a missing file.
void check_sizes(const std::string& checkpoint, const Manifest& manifest,
                 const std::function<int64_t(const std::string& name)>& size_of);

/// Reads COMMIT, then checks the manifest against it, then checks the sizes of the files. Throws Error
/// (storage) with the reason.
Manifest read_committed(const std::string& checkpoint);
/// Reads file number `index` in full and compares the hash. Also compares the shard's own header with the
/// manifest.
void verify_file(const std::string& checkpoint, const Manifest& manifest, int index);

/// Reason for setting a folder aside: the first word of its name.
enum class Aside : uint8_t {
  none,
  superseded,   ///< complete; a run went back to an older step, and past it
  unhealthy,    ///< committed, with a loss, gradient norm or state that is not finite
  damaged,      ///< committed, with contents that differ from what was written
  uncommitted,  ///< without COMMIT
};
std::string_view to_string(Aside a);

struct Candidate {
  std::string path, name;
  std::string error;  ///< empty: committed, with files of the right sizes
  Manifest manifest;  ///< valid if error is empty
  bool pinned = false;
  std::string note;  ///< "the folder is named for step 100"
  Aside aside = Aside::none;
  /// Step in the manifest. Without a valid manifest: step in the name, or -1.
  int64_t step() const;
};

/// Returns whether the folder has a manifest or a COMMIT.
bool is_checkpoint(const std::string& path);
/// Reads the checkpoint of this folder, or the reason why it is invalid.
Candidate read_checkpoint(const std::string& path);
/// All folders that look like checkpoints, newest first by the step in the manifest, or in the name without a
/// valid manifest.
std::vector<Candidate> list_checkpoints(const std::string& folder);

/// Folders that runs have set aside, sorted by name.
std::vector<Candidate> list_set_aside(const std::string& folder);
/// Renames a checkpoint to a name with the reason, and returns that name. `damaged`: it was found damaged,
/// even if the candidate has no error.
std::string set_aside(const Candidate& checkpoint, bool damaged = false);
/// Name that set_aside gives to the checkpoint.
std::string aside_name(const Candidate& checkpoint, bool damaged = false);
/// Checkpoints that a run starting from step `begun` (0: fresh start) supersedes: complete, unpinned
/// checkpoints of later steps among `found`.
std::vector<const Candidate*> left_behind(const std::vector<Candidate>& found, int64_t begun);
/// Throws Error (usage) if a checkpoint after step `begun` and up to step `last` has a KEEP file, because the
/// run would reach that step.
void refuse_pinned(const std::vector<Candidate>& found, int64_t begun, int64_t last);
/// Checkpoints that rotation leaves.
struct KeepRule {
  int64_t latest = 2;                             ///< newest healthy ones, at least 2; 0: all
  bool best = false;                              ///< and the one of the lowest held-out loss
  int64_t every = 0;                              ///< and those whose step is a multiple of it; 0: none
  std::function<bool(int64_t step)> in_use = {};  ///< and those that are read now; null: none
  bool permanent(int64_t step) const { return every > 0 && step % every == 0; }
};
/// Bytes that rotation may remove for a run that starts from step `begun`.
int64_t removable_bytes(const std::vector<Candidate>& found, int64_t begun, const KeepRule& keep);

/// Removes remains of interrupted saves and deletions, and returns their names. The caller must hold the
/// folder's lock.
std::vector<std::string> sweep_debris(const std::string& folder);
/// Healthy checkpoint with the lowest held-out loss, the earliest of equal ones; null: none was evaluated.
const Candidate* best_checkpoint(const std::vector<Candidate>& found);

/// Old checkpoints of a list, which is newest first: healthy ones that the rule does not keep, and unhealthy
/// ones older than the newest. Never pinned or unreadable ones. The oldest comes first.
std::vector<const Candidate*> rotated_out(const std::vector<Candidate>& all, const KeepRule& keep);
/// Removes those of a folder. Returns their names.
std::vector<std::string> rotate(const std::string& folder, const KeepRule& keep);
/// With `keep_best`, points the link `best` in the folder to the best checkpoint. Removes a link whose
/// checkpoint is gone. Returns the name of the checkpoint if the link changed, else "".
std::string link_best(const std::string& folder, bool keep_best);

}  // namespace ltrain
