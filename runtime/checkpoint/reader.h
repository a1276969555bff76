// Finds the checkpoint to resume from, and reads any slice of its tensors, whatever layout wrote it.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/safetensors.h"

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

class CheckpointReader {
 public:
  /// Collective: every rank opens the same checkpoint. Null when `resume` is never, or auto and there is
  /// none; `notes` then says so, and says why newer checkpoints were passed over when an older one is taken.
  /// Error (storage) when a path was given and nothing there can be used, or when all that auto finds is
  /// damaged.
  static std::unique_ptr<CheckpointReader> open(const ResumeOptions& options, Communicator& control,
                                                Stream& stream, std::vector<std::string>& notes);

  const CheckpointInfo& info() const { return manifest_.info; }
  const std::string& path() const { return path_; }
  const std::map<std::string, TensorParts>& tensors() const { return manifest_.tensors; }
  bool has(const std::string& name) const { return manifest_.tensors.count(name) > 0; }

  /// Fills `to` with the slice's elements. Error (storage) when there is no such tensor, or its shape or type
  /// differ. Reads the byte ranges of the pieces that it needs and no more.
  void read(const std::string& name, DType dtype, const Slice& slice, void* to);
  /// Collective: every element of every tensor that `needed` names (default: all) has been read by some rank;
  /// Error (storage) naming the tensors that were not.
  void finish(Communicator& control, Stream& stream,
              const std::function<bool(const std::string&)>& needed = {});
  int64_t bytes_read() const { return bytes_read_; }  ///< by this rank, by read()
  /// Rank 0: names of newer checkpoints that were passed over when their bytes had been read.
  const std::vector<std::string>& damaged() const { return damaged_; }

 private:
  CheckpointReader(std::string path, Manifest manifest);
  const SafetensorsFile& file(int index);

  std::string path_;
  Manifest manifest_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;  // opened when first read
  std::map<std::string, int64_t> elements_read_;
  std::vector<char> buffer_;
  std::vector<std::string> damaged_;
  int64_t bytes_read_ = 0;
};

/// "" or the settings that differ and matter: "hidden_size is 256 in the checkpoint and 512 in the recipe".
std::string model_mismatch(const std::vector<std::pair<std::string, std::string>>& checkpoint,
                           const std::vector<std::pair<std::string, std::string>>& recipe);

}  // namespace ltrain
