// Steps that make no update: gradients that overflow in fp16, and gradient norms above train.skip_grad_norm.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/program/train_program.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

class SkippedSteps {
 public:
  explicit SkippedSteps(const Recipe& recipe) : recipe_(recipe) {}

  /// Steps without an update so far, in all runs since step 0.
  int64_t count() const { return count_; }
  void restore(int64_t count) { count_ = count; }

  /// Counts a step that has ended. Returns a line for the log if it made no update, else "". `next_scale`:
  /// the loss scale of the next step. `last_checkpoint`: a sentence for the error without its period. Throws
  /// Error (no_progress) after too many such steps in a row.
  std::string note(int64_t step, const StepResult& r, double next_scale, const std::string& last_checkpoint);

 private:
  std::string note_overflow(int64_t step, const StepResult& r, double next_scale,
                            const std::string& last_checkpoint);

  const Recipe& recipe_;
  int64_t count_ = 0, skipped_in_a_row_ = 0, overflows_in_a_row_ = 0;
};

}  // namespace ltrain
