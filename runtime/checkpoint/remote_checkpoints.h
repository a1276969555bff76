// Copies of checkpoints in a bucket (checkpoint.remote): URL/step-00000100/ with the files of the local one,
// and COMMIT last. A copy without a valid COMMIT counts for nothing. Nothing is overwritten: if a name is in
// use, because a run went back before that step and past it again, the next copy is step-00000100-2.
//
// A run takes the URL by an object OWNER with a number of its own. A run that finds another number there
// writes nothing more, so that of two runs with one URL only the later one goes on.
#pragma once
#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "runtime/checkpoint/store.h"
#include "runtime/objects/object_store.h"

namespace ltrain {

inline const char* kSupersededFile = "SUPERSEDED";  ///< COMMIT of a copy that counts no more
inline const char* kOwnerFile = "OWNER";

/// One thread at a time. Functions throw Error as ObjectStore::fail_response(), with the URL.
class RemoteCheckpoints {
 public:
  /// `url`: s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, as the rules of recipes demand. Throws Error (usage)
  /// for settings of the store that cannot be. Sends no request.
  explicit RemoteCheckpoints(const std::string& url);
  const std::string& url() const { return url_; }

  /// All copies, newest first as list_checkpoints(); Candidate::path is a URL. Reads each manifest once.
  std::vector<Candidate> list();
  /// The copy of that name, without a look at others.
  Candidate find(const std::string& name);

  /// Takes the URL for this run. Returns who had it, or "".
  std::string take();
  /// Uploads a local checkpoint, after unfinished copies have been removed. Files that another copy has, too,
  /// are copied within the store. The first upload supersedes complete copies, without KEEP, of steps after
  /// `begun`, the step that the run began from: their COMMIT is renamed to SUPERSEDED. Returns the URL of the
  /// copy, or "" once `stop` is set. Throws Error (usage) if another run has taken the URL.
  std::string upload(const std::string& checkpoint, int64_t begun, const std::atomic<bool>& stop,
                     std::vector<std::string>& notes);
  /// Removes those of rotated_out(). Returns their names.
  std::vector<std::string> rotate(const KeepRule& keep);

  /// Downloads into `folder` file `index` of the manifest of a copy. Returns "", or how it differs from what
  /// the manifest says.
  std::string download(const Candidate& copy, int index, const std::string& folder);
  /// Writes manifest and COMMIT of the copy into `folder`.
  void download_commit(const Candidate& copy, const std::string& folder);

 private:
  using Files = std::map<std::string, objects::Object>;  // keyed by name
  /// Files of copies whose names begin with `names`, by name of the copy.
  std::map<std::string, Files> folders(const std::string& names = "step-");
  objects::Url file_url(const std::string& copy, const std::string& file) const;
  Candidate read(const std::string& name, const Files& files);
  std::vector<Candidate> read_all(const std::map<std::string, Files>& there);
  std::string read_text(const objects::Object& object, int64_t most_bytes);
  void check_owner();
  void supersede(int64_t begun, std::vector<std::string>& notes);
  void remove(const std::string& name, const Files& files);
  /// Returns false if no copy has such a file, or if the store cannot copy it.
  bool copy_within(const FileRecord& file, const objects::Url& to, const std::vector<Candidate>& copies);

  std::string url_;
  objects::Url base_;  // path: the prefix, with a slash at its end
  objects::ObjectStore store_;
  std::string owner_;  // text of OWNER; empty: not taken
  bool has_uploaded_ = false;
  std::map<std::string, std::pair<std::string, Manifest>>
      manifests_;  // name to identity of COMMIT, and manifest
};

}  // namespace ltrain
