// Evaluation: forward passes of a TrainProgram over held-out batches.
#include <array>

#include "runtime/program/stage_run.h"
#include "runtime/program/train_program.h"

namespace ltrain {

double TrainProgram::evaluate(const std::function<const HostBatch*()>& next) {
  return evaluate(next, {})->loss;
}

std::optional<EvalResult> TrainProgram::evaluate(const std::function<const HostBatch*()>& next,
                                                 const AskStop& ask_stop,
                                                 const std::vector<int32_t>& token_bytes) {
  const bool meta = device_.compute.meta() != nullptr;
  Step step = make_step(false);
  if (options_.for_training) {
    store_.complete_weights();
    store_.use_ema_weights(true);
  }
  sums_->clear();
  std::array<int64_t, 2> counts{};  // tokens, bytes
  bool more = true, once = meta && !next;
  const HostBatch none;
  while (more) {  // one pass per group of micro-batches, as large as in a step for a pipeline
    if (ask_stop && any_rank(ask_stop())) {
      if (options_.for_training) store_.use_ema_weights(false);
      return {};
    }
    int slots = 0;
    while (slots < (staged() ? slots_->count() : 1)) {
      const HostBatch* batch = once ? &none : next ? next() : nullptr;
      once = false;
      more = batch != nullptr;
      if (!more) break;
      for (const int32_t t : batch->targets) {
        counts[0] += t >= 0;
        if (t >= 0 && static_cast<size_t>(t) < token_bytes.size()) counts[1] += token_bytes[t];
      }
      load(*batch, slots++, false);
    }
    if (slots == 0) break;
    const pipeline::Schedule forward = forward_only(options_.schedule, slots);
    StageRun run(decoder_, step, forward);
    run.run(pipeline::lower(forward, pipeline_rank()), [&](int k) { return micro_batch(k); });
  }
  step.enter("loss");
  sum_counts(counts);
  sums_->reduce(device_.groups, "reading the loss");
  if (options_.for_training) store_.use_ema_weights(false);
  EvalResult result{0, counts[0], counts[1]};
  if (!meta && result.tokens > 0) {
    result.loss = sums_->read(staging_)[sums_->loss] / static_cast<double>(result.tokens);
    device_.groups.check();
  }
  return result;
}

}  // namespace ltrain
