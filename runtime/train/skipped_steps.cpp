#include "runtime/train/skipped_steps.h"

#include "base/error.h"

namespace ltrain {

std::string SkippedSteps::note(int64_t step, const StepResult& r, double next_scale,
                               const std::string& last_checkpoint) {
  overflows_in_a_row_ = r.overflow ? overflows_in_a_row_ + 1 : 0;
  if (!r.overflow) skipped_in_a_row_ = r.skipped ? skipped_in_a_row_ + 1 : 0;
  count_ += r.skipped || r.overflow;
  if (r.overflow) return note_overflow(step, r, next_scale, last_checkpoint);
  if (!r.skipped) return "";
  if (skipped_in_a_row_ >= recipe_.train.max_skipped_steps)
    fail(ExitCode::no_progress,
         "step {}: {} steps in a row made no update, as many as train.max_skipped_steps allows: the last "
         "gradient norm is {:.3g}, train.skip_grad_norm {}.\n{}: raise train.skip_grad_norm, or go on from "
         "an older one with a lower optimizer.lr.",
         step, skipped_in_a_row_, r.grad_norm, recipe_.train.skip_grad_norm, last_checkpoint);
  return fmt::format(
      "step {}: the gradient norm {:.3g} is above train.skip_grad_norm = {}: no update was made", step,
      r.grad_norm, recipe_.train.skip_grad_norm);
}

std::string SkippedSteps::note_overflow(int64_t step, const StepResult& r, double next_scale,
                                        const std::string& last_checkpoint) {
  const double minimum = recipe_.loss_scale.settings.minimum;
  if (overflows_in_a_row_ >= recipe_.loss_scale.max_skipped_steps)
    fail(ExitCode::no_progress,
         "step {}: gradients overflowed in {} steps in a row, as many as loss_scale.max_skipped_steps "
         "allows; the loss scale is {:g}, its minimum {:g}.\n{}: {}",
         step, overflows_in_a_row_, next_scale, minimum, last_checkpoint,
         next_scale > minimum
             ? "raise loss_scale.max_skipped_steps, or begin with a smaller loss_scale.initial."
             : "the gradients themselves are too large for fp16: use precision: bf16, or go on from an older "
               "one with a lower optimizer.lr.");
  return fmt::format(
      "step {}: gradients overflow with a loss scale of {:g}: no update was made; the next is {:g}", step,
      r.loss_scale, next_scale);
}

}  // namespace ltrain
