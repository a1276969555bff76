// Evaluation: forward passes of a TrainProgram over held-out batches.
#include <array>
#include <cmath>

#include "runtime/program/stage_run.h"
#include "runtime/program/train_program.h"

namespace ltrain {

void TrainProgram::hand_logits(const HostBatch& batch, const Tensor& logits, int64_t first_row) {
  const auto count = static_cast<size_t>(logits.elements());
  std::vector<double> all(count);
  if (logits.dtype == DType::f64) {
    download(device_.compute, all.data(), logits);
  } else {
    std::vector<float> narrow(count);
    download(device_.compute, narrow.data(), logits);
    std::copy(narrow.begin(), narrow.end(), all.begin());
  }
  if (const double cap = options_.model.final_logit_softcapping.value_or(0); cap > 0)
    for (double& x : all) x = cap * std::tanh(x / cap);
  take_logits_(batch, first_row, all);
}

double TrainProgram::evaluate(const std::function<const HostBatch*()>& next) {
  return evaluate(next, {})->loss;
}

std::optional<EvalResult> TrainProgram::evaluate(const std::function<const HostBatch*()>& next,
                                                 const AskStop& ask_stop,
                                                 const std::vector<int32_t>& token_bytes, double divergence) {
  const bool meta = device_.compute.meta() != nullptr;
  Step step = make_step(false);
  if (options_.for_training) {
    store_.complete_weights();
    store_.use_ema_weights(true);
  }
  sums_->clear();
  int64_t tokens = 0, bytes = 0;
  PairCounts pairs;
  bool more = true, once = meta && !next;
  const HostBatch none, *last = nullptr;
  std::vector<HostBatch> loaded;  // batches in the slots, if choices are handed over
  while (more) {                  // one pass per group of micro-batches, as large as in a step for a pipeline
    if (ask_stop && any_rank(ask_stop())) {
      if (options_.for_training) store_.use_ema_weights(false);
      return {};
    }
    int slots = 0;
    loaded.clear();
    while (slots < (staged() ? slots_->count() : 1)) {
      const HostBatch* batch = once ? &none : next ? next() : nullptr;
      once = false;
      more = batch != nullptr;
      if (!more) break;
      for (const int32_t t : batch->targets) {
        tokens += t >= 0;
        if (t >= 0 && static_cast<size_t>(t) < token_bytes.size()) bytes += token_bytes[t];
      }
      count_pairs(pairs, *batch, device_.groups.context.rank());
      load(*batch, slots++, false);
      last = batch;
      if (take_choices_) loaded.push_back(*batch);
    }
    if (slots == 0) break;
    const TakeLogits take = [&](const Tensor& logits, int64_t first_row) {
      hand_logits(*last, logits, first_row);
    };
    const pipeline::Schedule forward = forward_only(options_.schedule, slots);
    StageRun run(decoder_, step, forward);
    run.run(pipeline::lower(forward, pipeline_rank()), [&](int k) {
      MicroBatch mb = micro_batch(k);
      mb.pairs.totalled = true;
      if (take_logits_ && !meta) mb.take_logits = &take;
      if (!meta) mb.observer = observer_;
      mb.pairs.loss.divergence = divergence;
      return mb;
    });
    for (size_t k = 0; k < loaded.size() && !meta; ++k) hand_choices(loaded[k], static_cast<int64_t>(k));
  }
  step.enter("loss");
  std::array<int64_t, 3> counts{tokens, options_.preference ? pairs.pairs : bytes, pairs.chosen_tokens};
  sum_counts(std::span(counts).first(options_.preference ? 3 : 2), true);
  sums_->reduce(device_.groups, "reading the loss");
  sums_->reduce_over_sites(device_.groups);
  if (options_.for_training) store_.use_ema_weights(false);
  EvalResult result;
  result.tokens = counts[0];
  if (!options_.preference) result.bytes = counts[1];
  if (meta || result.tokens == 0) return result;
  const StepSums::Values sums = sums_->read(staging_);
  device_.groups.check();
  result.loss = sums[sums_->loss] / static_cast<double>(result.tokens);
  if (!options_.preference) return result;
  PreferenceSettings settings = *options_.preference;
  settings.divergence = divergence;
  const std::span<const double> totals = sums.of(sums_->pairs);
  result.preference = preference_result(settings, {counts[1], counts[2]}, totals);
  result.loss = result.preference->loss;
  result.divergence = divergence_of(totals, counts[1]);
  return result;
}

}  // namespace ltrain
