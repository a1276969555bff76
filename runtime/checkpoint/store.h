// A folder of checkpoints: step-00000100/ with shards, manifest.json and, last, COMMIT. What has no valid
// COMMIT does not exist for a resume.
#pragma once
#include <string>
#include <vector>

#include "runtime/checkpoint/manifest.h"

namespace ltrain {

std::string checkpoint_name(int64_t step);  ///< "step-00000100"
inline const char* kManifestFile = "manifest.json";
inline const char* kCommitFile = "COMMIT";
inline const char* kPinFile = "KEEP";  ///< put there by a user: rotation leaves the checkpoint alone

/// What COMMIT says of a manifest's text.
std::string commit_record(const std::string& manifest_text);

/// Reads COMMIT, then the manifest that it vouches for, then the sizes of the files. Error (storage): what is
/// wrong.
Manifest read_committed(const std::string& checkpoint);
/// Reads every byte of file number `index` and compares the hash; also the shard's own header with the
/// manifest.
void verify_file(const std::string& checkpoint, const Manifest& manifest, int index);

struct Candidate {
  std::string path, name;
  std::string error;  ///< empty: committed and of the right sizes
  Manifest manifest;  ///< when error is empty
  bool pinned = false;
  std::string note;  ///< "the folder is named for step 100"
};

/// Everything that looks like a checkpoint, newest first by the step in the manifest (of what has none that
/// can be believed: in the name).
std::vector<Candidate> list_checkpoints(const std::string& folder);

/// Removes what saves and deletions that died have left; returns their names. The caller holds the folder's
/// lock.
std::vector<std::string> sweep_debris(const std::string& folder);
/// Removes, oldest first, what rotation does not keep: beyond `keep` healthy ones (at least 2; 0: all), and
/// unhealthy ones older than the newest. Never pinned ones, nor what it cannot read. Returns their names.
std::vector<std::string> rotate(const std::string& folder, int64_t keep);
/// Bytes that the checkpoints of a folder take.
int64_t folder_bytes(const std::string& folder);

}  // namespace ltrain
