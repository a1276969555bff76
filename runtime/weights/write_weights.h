// A checkpoint of step 0 with weights alone, tensor by tensor.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/mesh/groups.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/piece_reader.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/recipe/recipe.h"
#include "runtime/weights/export.h"
#include "runtime/weights/stream_tensor.h"

namespace ltrain {

/// A checkpoint whose weights are written anew, opened by one process. Weights may have any floating type.
class OldCheckpoint {
 public:
  /// `path`: a checkpoint, a folder of them, or a run's output_dir.
  OldCheckpoint(const std::string& path, std::vector<std::string>& notes);
  CheckpointReader& reader() { return *reader_; }
  const Recipe& recipe() const { return recipe_; }

 private:
  GroupSet alone_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<CheckpointReader> reader_;
  Recipe recipe_;
};

/// A tensor that is written: `elements` hands its elements to the writer, in order, as `dtype`.
struct WrittenTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::function<void(const WriteBytes&)> elements;
};

/// The tensor `from` of `reader` with its elements unchanged, under another name. `reader` must outlive it.
WrittenTensor copied_tensor(PieceReader& reader, const std::string& from, std::string name);

/// State of a checkpoint `made` of step 0 with the weights of the recipe's model. Throws Error (usage) if the
/// recipe breaks a rule.
CheckpointInfo info_of_weights(const Recipe& recipe, int64_t seed, const std::string& made);

/// Settings of `after` that differ from those of `before`, as on a command line: "model.num_hidden_layers=2".
std::vector<std::string> changed_settings(const ModelConfig& before, const ModelConfig& after);

/// Error when `checkpoint` exists. Returns the bytes of all tensors.
int64_t write_weights(const std::string& checkpoint, const std::vector<WrittenTensor>& tensors,
                      CheckpointInfo info, const CopyProgress& progress = {});

}  // namespace ltrain
