// Contents of a checkpoint: the state of training, and the location of each part of each tensor. A checkpoint
// has several files but does not depend on ranks.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor/dtype.h"
#include "parallel/mesh/sharding.h"
#include "parallel/optim/loss_scale.h"
#include "runtime/data/identity.h"

namespace ltrain {

/// State apart from tensors. Saving and loading use the same list of fields in manifest.cpp.
struct CheckpointInfo {
  int64_t step = 0;                                   ///< optimizer steps done
  int64_t data_cursor = 0;                            ///< global index of the next sample of `data`
  int64_t consumed_samples = 0, consumed_tokens = 0;  ///< totals over all data and sequence lengths used
  /// Complete state of the generator, which is a function of (seed, name or step, element).
  int64_t seed = 0;
  int64_t skipped_steps = 0;                 ///< number of steps in `step` without an update
  int64_t earlier_updates = 0;               ///< updates in the optimizer state before step 0
  std::optional<LossScaleState> loss_scale;  ///< for runs with loss scaling
  double loss = 0;                           ///< loss of the last step
  double grad_norm = 0;                      ///< gradient norm of the last step
  std::optional<double> eval_loss;           ///< mean over the held-out sets of an evaluation at `step`
  bool healthy =
      /// Loss, gradient norm and state are finite; a save sets it false if the loss or gradient norm is not.
      true;
  std::vector<std::pair<std::string, std::string>> model;  ///< model_settings() of the recipe
  std::string recipe;                                      ///< the resolved recipe, YAML
  std::string written_by;                                  ///< version() of the program; empty: unknown
  std::optional<data::DataIdentity> data;                  ///< absent in format version 1
  /// Number of updates in the optimizer's moments.
  int64_t updates() const { return earlier_updates + step - skipped_steps; }
};

/// Order of a slice's elements in a file tensor of `elements` elements. The slice is seen as a matrix whose
/// columns are its last dim.
struct FileOrder {
  enum Kind : uint8_t {
    rows,     ///< contiguous rows
    strided,  ///< element (r, c) has index first + r * row + c * column
    /// Row r is row first + r * row of blocks of 32 columns: 16 bytes per block here, and one scale per block
    /// in `scales`.
    mxfp4,
    /// Contiguous blocks of NF4 (kernels/matmul/nf4.h); `scales` has their magnitudes.
    nf4,
    fp8  ///< contiguous rows in e4m3; `scales` has an fp32 factor for each block of kFp8Block by kFp8Block
  };
  static constexpr int64_t kFp8Block = 128;
  Kind kind = rows;
  int64_t first = 0, row = 0, column = 0, elements = 0;
  std::string scales = {};
  int scales_file = 0;
};

/// A part of a logical tensor, stored under `key` in file number `file`.
struct Piece {
  int file = 0;
  std::string key;
  Slice slice;
  /// Order of the elements in the file, if the slice is not contiguous. Used only for Hugging Face folders
  /// (runtime/weights), and for NF4; checkpoints always store contiguous slices.
  FileOrder order = {};
};

struct TensorParts {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<Piece> pieces;
};

struct FileRecord {
  std::string name;
  int64_t bytes = 0;
  std::string hash;  ///< xxh3-128 hash of the whole file
};

struct Manifest {
  CheckpointInfo info;
  std::vector<FileRecord> files;
  std::map<std::string, TensorParts> tensors;
  int64_t bytes() const;  ///< size of all files
};

inline constexpr int kManifestVersion = 2;  ///< version 1 has neither data identity nor consumed_samples
/// Limit of steps, samples and tokens; the sum of two fits int64.
inline constexpr int64_t kMaxCount = int64_t{1} << 60;
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

std::string manifest_to_json(const Manifest& manifest);
/// Parses a manifest strictly. `path`: for messages. Throws Error (storage) on anything unexpected, including
/// a newer version.
Manifest manifest_from_json(const std::string& text, const std::string& path);
/// Returns why the pieces do not cover every tensor exactly once; "": they do.
std::string untiled(const Manifest& manifest);

/// Serialization for other ranks: JSON as in the manifest.
std::string data_identity_to_json(const data::DataIdentity& identity);
data::DataIdentity data_identity_from_json(const std::string& text, const std::string& path);

/// Serialization of the slices that a rank writes, for other ranks: a JSON list.
std::string pieces_to_json(const std::map<std::string, TensorParts>& tensors);
std::map<std::string, TensorParts> pieces_from_json(const std::string& text, const std::string& path,
                                                    int file_count);

std::string shard_name(int index, int count);  ///< "shard-00000-of-00002.safetensors"

}  // namespace ltrain
