// A checkpoint as a folder of Hugging Face: `ltrain export`.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor/dtype.h"

namespace ltrain {

/// Bytes done and to be done.
using CopyProgress = std::function<void(int64_t done, int64_t all)>;

struct ExportOptions {
  std::string checkpoint;  ///< a checkpoint, a folder of them, or a run's output_dir: the newest healthy one
  std::string folder;      ///< that is made
  std::optional<DType> dtype;  ///< of the weights; none: that of the run's matmuls, or as they were imported
  int64_t shard_bytes = 5'000'000'000;  ///< of a file, at most, but for a tensor that is larger
  bool average = false;                 ///< the average that train.ema_decay keeps
  /// Folder of tokenizer files; empty: that of data.tokenizer.path (huggingface), else the folder that the
  /// run began with.
  std::string tokenizer;
  CopyProgress progress;  ///< optional
};

struct ExportReport {
  std::string checkpoint;
  int64_t step = 0;
  std::vector<std::string> files;
  int64_t tensors = 0, bytes = 0;
  DType dtype = DType::f32;  ///< of the embedding
  std::vector<std::string> notes;
};

/// Reads and writes by blocks: a model larger than the host's memory goes through. Error when the folder
/// exists, when the checkpoint is damaged, or when no config.json of the family says what the model is.
ExportReport export_checkpoint(const ExportOptions& options);

}  // namespace ltrain
