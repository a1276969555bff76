// Records of routers' choices in training, FOLDER/step-00000010/rank-00003-of-00008.jsonl, and their replay.
// Lines name sample, position and layer, so that a record of one layout replays under any other.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "runtime/program/train_program.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

struct RoutingFolders {
  std::string record;    ///< "": none
  int64_t interval = 1;  ///< steps that are recorded: every n-th
  std::string replay;    ///< "": none
};

/// Rows [begin, end) of a micro-batch's choices that a rank tells of: tensor ranks that share each expert
/// route the same rows, of which the first tells.
struct RoutedRows {
  int64_t begin = 0, end = 0;
};
RoutedRows routed_rows(const TrainProgram& program, const Mesh& mesh);

/// Choices of routers of one rank, step by step.
class StepRouting {
 public:
  StepRouting(TrainProgram& program, const Mesh& mesh, RoutingFolders folders)
      : program_(program), mesh_(mesh), folders_(std::move(folders)) {}

  /// Throws Error (data) if the record lacks a step after `done`, up to `end`.
  void check_steps(int64_t done, int64_t end) const;
  /// Replay: gives the program the choices of step `step`, whose global batch is `samples` samples from
  /// `first` on. Throws Error (data) with file, line and rule.
  void before_step(int64_t step, int64_t first, int64_t samples, const std::vector<HostBatch>& batches);
  /// Writes the choices of a step. Throws Error (storage).
  void after_step(int64_t step, const std::vector<HostBatch>& batches);

 private:
  /// (micro-batches, layers of this rank, rows, k): -1: chooses for itself.
  using Choices = std::vector<std::vector<std::vector<int32_t>>>;
  Choices read(int64_t step, int64_t first, int64_t samples, const std::vector<HostBatch>& batches) const;
  std::string folder(const std::string& of, int64_t step) const;

  TrainProgram& program_;
  const Mesh mesh_;
  const RoutingFolders folders_;
};

RoutingFolders routing_folders(const Recipe& recipe);
/// Bytes of the lines of one step of `samples` samples, an upper bound where ranks have full sequences.
int64_t routing_record_bytes(const ModelConfig& model, int64_t seq_length, int64_t samples);
/// Line for plans and logs on the records of a run; "": it neither records nor replays.
std::string routing_text(const Recipe& recipe);

}  // namespace ltrain
