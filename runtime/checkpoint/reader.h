// Search for the checkpoint to resume from, and reading of any slice of its tensors, independent of the
// layout that wrote it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "runtime/checkpoint/piece_reader.h"

namespace ltrain {

struct ResumeOptions {
  std::string folder;  ///< OUTPUT_DIR/checkpoints
  /// Auto | never | path of a checkpoint or of a folder with checkpoints.
  std::string resume = "auto";
  std::string key = "checkpoint.resume";  ///< recipe key that a path comes from
  bool verify_hashes = true;  ///< hash all files before anything is read; the ranks share the work
  /// model_settings() of the recipe. Settings that change the shape of tensors or the computation must agree.
  /// Dropout and initial values may differ. Empty: no comparison.
  std::vector<std::pair<std::string, std::string>> model;
};

class CheckpointReader : public PieceReader {
 public:
  /// Collective: every rank opens the same checkpoint. Returns null if `resume` is never, or auto without a
  /// checkpoint; `notes` then says so. If an older checkpoint is used, `notes` says why newer ones were
  /// skipped. Throws Error (storage) if a given path has no usable checkpoint, or if auto finds only damaged
  /// ones.
  static std::unique_ptr<CheckpointReader> open(const ResumeOptions& options, Communicator& control,
                                                Stream& stream, std::vector<std::string>& notes);

  /// Collective. Opens the checkpoint at `path`, or the newest usable one in a folder of checkpoints or in a
  /// run's output_dir. `notes` says why newer ones were skipped. `key` names the path in errors (storage).
  static std::unique_ptr<CheckpointReader> open_at(const std::string& path, const std::string& key,
                                                   bool verify_hashes, Communicator& control, Stream& stream,
                                                   std::vector<std::string>& notes);

  const CheckpointInfo& info() const { return info_; }
  /// Rank 0: names of newer checkpoints that were skipped after their bytes had been read.
  const std::vector<std::string>& damaged() const { return damaged_; }

 private:
  CheckpointReader(const std::string& path, Manifest manifest);
  static std::unique_ptr<CheckpointReader> find(const ResumeOptions& options, Communicator& control,
                                                Stream& stream, std::vector<std::string>& notes);

  CheckpointInfo info_;
  std::vector<std::string> damaged_;
};

/// Returns whether `value` means the same as an absent key. A checkpoint from before the key existed does not
/// have it.
bool says_nothing(const std::string& value);
/// Settings that differ and matter: "hidden_size is 256 in the checkpoint and 512 in the recipe"; "": none.
std::string model_mismatch(const std::vector<std::pair<std::string, std::string>>& checkpoint,
                           const std::vector<std::pair<std::string, std::string>>& recipe);

}  // namespace ltrain
