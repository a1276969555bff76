// Explanation of a step whose loss or gradient norm is NaN or infinite: the tensor, the micro-batch and the
// rank where such a value comes first, as far as weights, gradients and another forward pass show it.
#pragma once
#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "runtime/program/train_program.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

struct FailedStep {
  const Recipe& recipe;
  const Mesh& mesh;
  TrainProgram& program;
  Stream& compute;
  const std::vector<HostBatch>& batches;  ///< micro-batches of this rank
  Communicator& group;                    ///< all ranks, on the CPU
  Stream& stream;                         ///< CPU stream of `group`
  std::string host;                       ///< host of this rank
  int64_t step = 0;
};

/// Values that are NaN or infinite. Integers have none.
int64_t count_not_finite(Stream& stream, const Tensor& t);

/// The error of the step, the same on all ranks. Calls explain_not_finite. `sample`: position in the data.
std::string not_finite_text(const FailedStep& failed, const StepResult& r, int64_t sample);

/// Collective, after the gradients of the step are summed and before anything changes them. Returns lines,
/// the same on all ranks, and leaves each rank's part of the batch in
/// output_dir/not-finite/step-00000012/rank-00000.json.
std::string explain_not_finite(const FailedStep& failed);

}  // namespace ltrain
