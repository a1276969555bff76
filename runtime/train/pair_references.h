// The reference model of task: dpo and kto: its sums of log-probabilities for all pairs, which one pass
// before the first step makes. They are kept in files of the run for later starts.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/mesh/mesh.h"
#include "runtime/data/batch_loader.h"
#include "runtime/program/train_program.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// A run at the step from which it goes on.
struct ReferencedRun {
  const Recipe& recipe;
  const Mesh& mesh;
  TrainProgram& program;
  Communicator& control;
  Stream& stream;
  int64_t step;
};

/// Sums for LoaderOptions::references of training data (`held_out` 0), or of held-out set 1, 2, ...; null for
/// losses without a reference, and for training data whose references each step makes. task: reward: the
/// margins of pairs. At step 0 they are computed and written to a file of OUTPUT_DIR, reference-sums.bin or
/// reference-sums-eval-SET.bin, at later ones read from it. Collective. Throws Error (data) if the file is
/// missing, damaged or of other data.
std::shared_ptr<const data::PairReferences> reference_sums(const ReferencedRun& run,
                                                           const data::LoaderOptions& options, int held_out);

/// Checks the loss of the first step of a run whose reference is the initial model: it is that of a policy
/// equal to the reference. Throws Error (internal) otherwise.
void check_first_loss(const Recipe& recipe, const StepResult& result);

/// Names and values of metrics.jsonl; empty without pairs.
std::vector<std::pair<std::string, double>> preference_metrics(const Recipe& recipe,
                                                               const std::optional<PreferenceResult>& result);

}  // namespace ltrain
