// Evaluations during a run: the loss of each held-out set.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "runtime/eval/held_out.h"
#include "runtime/program/train_program.h"
#include "runtime/recipe/recipe.h"
#include "runtime/train/pair_references.h"

namespace ltrain {

struct SetResult {
  std::string name;  ///< empty if the recipe names no sets
  EvalResult result;
  double seconds = 0;
};

/// Evaluator of one rank. All ranks evaluate together.
class Evaluator {
 public:
  /// Reads the tokenizer if the data has one. `recipe` and `mesh` must outlive this object.
  Evaluator(const Recipe& recipe, const Mesh& mesh);

  /// `last`: the step is the run's last.
  bool due(int64_t step, bool last) const {
    const int64_t every = recipe_.train.eval_interval;
    return every > 0 && !recipe_.data.eval.empty() && (step % every == 0 || last);
  }
  /// With preference pairs: the sums of the reference for the pairs of each set. Collective.
  void find_references(const ReferencedRun& run);

  /// Evaluates train.eval_steps global batches of each set, in file order. Returns nullopt if the ranks
  /// agreed to stop.
  std::optional<std::vector<SetResult>> evaluate(TrainProgram& program,
                                                 const TrainProgram::AskStop& ask_stop) const;

 private:
  const Recipe& recipe_;
  const Mesh& mesh_;
  struct Set : EvalSet {
    bool in_bytes = false;  // bytes of its tokens are known
    std::shared_ptr<const data::PairReferences> references;
  };
  /// One pass over a set. `divergence`: PreferenceLoss::divergence.
  std::optional<EvalResult> pass(const Set& set, TrainProgram& program, const TrainProgram::AskStop& ask_stop,
                                 double divergence) const;
  std::vector<Set> sets_;
  std::vector<int32_t> text_bytes_;  // text bytes of each token id
};

/// "eval at step 10: loss 1.5000, perplexity 4.48, 2.1640 bits per byte (0.5 s)", with the name of the set;
/// with pairs their accuracy and margin.
std::string eval_line(int64_t step, const SetResult& set);

}  // namespace ltrain
