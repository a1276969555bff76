// Finds the checkpoint to resume from, and reads any slice of its tensors, whatever layout wrote it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "runtime/checkpoint/piece_reader.h"

namespace ltrain {

struct ResumeOptions {
  std::string folder;                     ///< OUTPUT_DIR/checkpoints
  std::string resume = "auto";            ///< auto | never | path of a checkpoint or of a folder of them
  std::string key = "checkpoint.resume";  ///< of the recipe, that a path comes from
  bool verify_hashes =
      true;  ///< every byte of every file, shared out among the ranks, before anything is read
  /// model_settings() of the recipe. Settings that shape the tensors or what they compute must agree; dropout
  /// and initial values may differ. Empty: not compared.
  std::vector<std::pair<std::string, std::string>> model;
};

class CheckpointReader : public PieceReader {
 public:
  /// Collective: every rank opens the same checkpoint. Null when `resume` is never, or auto and there is
  /// none; `notes` then says so, and says why newer checkpoints were passed over when an older one is taken.
  /// Error (storage) when a path was given and nothing there can be used, or when all that auto finds is
  /// damaged.
  static std::unique_ptr<CheckpointReader> open(const ResumeOptions& options, Communicator& control,
                                                Stream& stream, std::vector<std::string>& notes);

  /// Collective, and without a resume: the checkpoint at `path`, or the newest that can be used of a folder
  /// of checkpoints or of a run's output_dir. `notes` says why newer ones were passed over. `key` names the
  /// path in errors (storage).
  static std::unique_ptr<CheckpointReader> open_at(const std::string& path, const std::string& key,
                                                   bool verify_hashes, Communicator& control, Stream& stream,
                                                   std::vector<std::string>& notes);

  const CheckpointInfo& info() const { return info_; }
  /// Rank 0: names of newer checkpoints that were passed over when their bytes had been read.
  const std::vector<std::string>& damaged() const { return damaged_; }

 private:
  CheckpointReader(std::string path, Manifest manifest);
  static std::unique_ptr<CheckpointReader> find(const ResumeOptions& options, Communicator& control,
                                                Stream& stream, std::vector<std::string>& notes);

  CheckpointInfo info_;
  std::vector<std::string> damaged_;
};

/// A value that is as if its key were absent, as it is in a checkpoint from before there was such a key.
bool says_nothing(const std::string& value);
/// "" or the settings that differ and matter: "hidden_size is 256 in the checkpoint and 512 in the recipe".
std::string model_mismatch(const std::vector<std::pair<std::string, std::string>>& checkpoint,
                           const std::vector<std::pair<std::string, std::string>>& recipe);

}  // namespace ltrain
