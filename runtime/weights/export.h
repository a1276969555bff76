// Export of a checkpoint to a Hugging Face folder: `ltrain export`.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor/dtype.h"

namespace ltrain {

/// Progress in bytes.
using CopyProgress = std::function<void(int64_t done, int64_t all)>;

/// Adapters of a checkpoint with LoRA: added to the weights, or alone as a folder of PEFT. unset: refused.
enum class ExportAdapters : uint8_t { unset, merge, alone };

struct ExportOptions {
  /// A checkpoint, a folder of checkpoints, or a run's output_dir; the newest healthy one is used.
  std::string checkpoint;
  std::string folder;          ///< folder to create
  std::optional<DType> dtype;  ///< type of the weights; none: the run's matmul type, or the imported types
  int64_t shard_bytes = 5'000'000'000;  ///< maximum size of a file, unless a single tensor is larger
  bool average = false;                 ///< export the EMA weights of train.ema_decay
  bool masters = false;                 ///< export master weights of a quantized run
  ExportAdapters adapters = ExportAdapters::unset;
  /// Folder of tokenizer files. Empty: folder of data.tokenizer.path (huggingface), else the folder that the
  /// run began with.
  std::string tokenizer;
  CopyProgress progress;  ///< optional
};

struct ExportReport {
  std::string checkpoint;
  int64_t step = 0;
  std::vector<std::string> files;
  int64_t tensors = 0, bytes = 0;
  DType dtype = DType::f32;  ///< type of the embedding
  std::vector<std::string> notes;
};

/// Exports a checkpoint. Reads and writes in blocks, so the model may be larger than host memory. Throws
/// Error if the folder exists, if the checkpoint is damaged, or if no config.json of the family can describe
/// the model.
ExportReport export_checkpoint(const ExportOptions& options);

}  // namespace ltrain
