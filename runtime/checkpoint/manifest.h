// What a checkpoint holds: the state of training, and where each part of each tensor lies. It knows of ranks
// only that there are several files.
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

/// The state that is not tensors. Saving and loading go through the one list in manifest.cpp.
struct CheckpointInfo {
  int64_t step = 0;                                   ///< optimizer steps done
  int64_t data_cursor = 0;                            ///< global index of the next sample of `data`
  int64_t consumed_samples = 0, consumed_tokens = 0;  ///< counted, whatever data and sequence length they had
  int64_t seed = 0;  ///< the generator is a function of (seed, name or step, element): no other state
  int64_t skipped_steps = 0;                 ///< of `step`, those that made no update
  int64_t earlier_updates = 0;               ///< that the optimizer's states had before step 0
  std::optional<LossScaleState> loss_scale;  ///< of runs that scale the loss
  double loss = 0;                           ///< of the last step
  double grad_norm = 0;                      ///< of the last step
  std::optional<double> eval_loss;           ///< of an evaluation at `step`: mean over the held-out sets
  bool healthy =
      true;  ///< loss, gradient norm and state are finite; a save sets it false when the first two are not
  std::vector<std::pair<std::string, std::string>> model;  ///< model_settings() of the recipe
  std::string recipe;                                      ///< the resolved recipe, YAML
  std::string written_by;                                  ///< version() of the program; empty: not known
  std::optional<data::DataIdentity> data;                  ///< absent: written by format version 1
  /// That the optimizer's moments are averages of.
  int64_t updates() const { return earlier_updates + step - skipped_steps; }
};

/// How a file's tensor of `elements` elements has a slice, seen as a matrix whose columns are its last dim.
struct FileOrder {
  enum Kind : uint8_t {
    rows,     ///< one row after the other, and nothing else
    strided,  ///< element (r, c) is number first + r * row + c * column
    mxfp4,    ///< row r is row first + r * row of blocks of 32 columns: 16 bytes each here, a scale each in
              ///< `scales`
    fp8  ///< one row after the other in e4m3; `scales` has an fp32 factor for each kFp8Block by kFp8Block
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
  /// Where the file does not have the slice's elements one after the other. Of Hugging Face's folders alone
  /// (runtime/weights): no checkpoint has such.
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
  std::string hash;  ///< xxh3-128 of the whole file
};

struct Manifest {
  CheckpointInfo info;
  std::vector<FileRecord> files;
  std::map<std::string, TensorParts> tensors;
  int64_t bytes() const;  ///< of all files
};

inline constexpr int kManifestVersion = 2;  ///< 1 has neither identity of data nor consumed_samples
inline constexpr int64_t kMaxCount = int64_t{1} << 60;  ///< of steps, samples and tokens: sums of two fit
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

std::string manifest_to_json(const Manifest& manifest);
/// Strict; `path` is for messages. Error (storage) on anything unexpected, a newer version included.
Manifest manifest_from_json(const std::string& text, const std::string& path);
/// "" or why the pieces do not make up every tensor exactly once.
std::string untiled(const Manifest& manifest);

/// For the other ranks: JSON as in the manifest, and back.
std::string data_identity_to_json(const data::DataIdentity& identity);
data::DataIdentity data_identity_from_json(const std::string& text, const std::string& path);

/// The slices that a rank writes, for the other ranks: a JSON list, and back.
std::string pieces_to_json(const std::map<std::string, TensorParts>& tensors);
std::map<std::string, TensorParts> pieces_from_json(const std::string& text, const std::string& path,
                                                    int file_count);

std::string shard_name(int index, int count);  ///< "shard-00000-of-00002.safetensors"

}  // namespace ltrain
