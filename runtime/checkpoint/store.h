// A folder of checkpoints: step-00000100/ with shards, manifest.json and, last, COMMIT. What has no valid
// COMMIT does not exist for a resume.
//
// A run removes nothing that it did not write, but by rotation. What has the name of a step that it saves, or
// is of the branch that it leaves when it goes back to an older step, is set aside: it gets a name that says
// why, superseded-step-00000100, which neither auto nor rotation looks at.
#pragma once
#include <string>
#include <vector>

#include "runtime/checkpoint/manifest.h"

namespace ltrain {

std::string checkpoint_name(int64_t step);  ///< "step-00000100"
inline const char* kManifestFile = "manifest.json";
inline const char* kCommitFile = "COMMIT";
inline const char* kBestLink = "best";  ///< symbolic link to the checkpoint of the lowest held-out loss
inline const char* kPinFile = "KEEP";   ///< put there by a user: rotation leaves the checkpoint alone

/// What COMMIT says of a manifest's text.
std::string commit_record(const std::string& manifest_text);

/// Reads COMMIT, then the manifest that it vouches for, then the sizes of the files. Error (storage): what is
/// wrong.
Manifest read_committed(const std::string& checkpoint);
/// Reads every byte of file number `index` and compares the hash; also the shard's own header with the
/// manifest.
void verify_file(const std::string& checkpoint, const Manifest& manifest, int index);

/// Why a folder was set aside: the first word of its name.
enum class Aside : uint8_t {
  none,
  superseded,   ///< whole: a run went back to an older step, and past it
  unhealthy,    ///< committed, with a loss, gradient norm or state that is not finite
  damaged,      ///< committed, and not what was written
  uncommitted,  ///< has no COMMIT
};
std::string_view to_string(Aside a);

struct Candidate {
  std::string path, name;
  std::string error;  ///< empty: committed and of the right sizes
  Manifest manifest;  ///< when error is empty
  bool pinned = false;
  std::string note;  ///< "the folder is named for step 100"
  Aside aside = Aside::none;
  /// The manifest's step; of what has none that can be believed the step of its name, -1: it names none.
  int64_t step() const;
};

/// The folder has a manifest or a COMMIT.
bool is_checkpoint(const std::string& path);
/// The checkpoint of this folder, or what is wrong with it.
Candidate read_checkpoint(const std::string& path);
/// Everything that looks like a checkpoint, newest first by the step in the manifest (of what has none that
/// can be believed: in the name).
std::vector<Candidate> list_checkpoints(const std::string& folder);

/// What runs have set aside in a folder, by name.
std::vector<Candidate> list_set_aside(const std::string& folder);
/// Gives a checkpoint a name that says why it is no more in its place, and returns that name. `damaged`: it
/// was found so, whatever the candidate says.
std::string set_aside(const Candidate& checkpoint, bool damaged = false);
/// The name that set_aside gives it.
std::string aside_name(const Candidate& checkpoint, bool damaged = false);
/// What a run that goes on from step `begun` (0: a fresh start) leaves behind: the whole checkpoints of later
/// steps among `found` that are not pinned.
std::vector<const Candidate*> left_behind(const std::vector<Candidate>& found, int64_t begun);
/// Error (usage) when a checkpoint of a step after `begun` and up to `last` has a KEEP file: the run would
/// come to that step.
void refuse_pinned(const std::vector<Candidate>& found, int64_t begun, int64_t last);
/// Bytes of what rotation may remove, of a run that goes on from `begun`.
int64_t removable_bytes(const std::vector<Candidate>& found, int64_t begun);

/// Removes what saves and deletions that died have left; returns their names. The caller holds the folder's
/// lock.
std::vector<std::string> sweep_debris(const std::string& folder);
/// Healthy checkpoint with the lowest held-out loss, the earliest of equal ones; null: none was evaluated.
const Candidate* best_checkpoint(const std::vector<Candidate>& found);

/// Removes, oldest first, what rotation does not keep: beyond `keep` healthy ones (at least 2; 0: all), and
/// unhealthy ones older than the newest. Never pinned ones, nor what it cannot read, nor with `keep_best` the
/// best one. Returns their names.
std::vector<std::string> rotate(const std::string& folder, int64_t keep, bool keep_best = false);
/// With `keep_best` points the link `best` in the folder to the best checkpoint. A link whose checkpoint is
/// gone is removed. Returns the name of the checkpoint that the link is new to point to, or "".
std::string link_best(const std::string& folder, bool keep_best);

}  // namespace ltrain
