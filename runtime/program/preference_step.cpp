#include "runtime/program/preference_step.h"

#include <algorithm>

#include "kernels/meta/placement_rules.h"
#include "runtime/program/stage_run.h"
#include "runtime/program/train_program.h"

namespace ltrain {

PairCounts count_pairs(const std::vector<data::Batch>& batches, int context_rank) {
  PairCounts n;
  for (const data::Batch& b : batches) {
    if (context_rank == 0) n.pairs += b.pairs;
    for (size_t i = 0; i < b.segments.size(); ++i)
      n.chosen_tokens += b.targets[i] >= 0 && b.segments[i] >= 0 && b.segments[i] % 2 == 0;
  }
  return n;
}

double chosen_weight(const PreferenceSettings& settings, const PairCounts& counts) {
  if (counts.chosen_tokens == 0) return 0;
  return settings.sft_weight * static_cast<double>(counts.pairs) / static_cast<double>(counts.chosen_tokens);
}

PreferenceResult preference_result(const PreferenceSettings& settings, const PairCounts& counts,
                                   std::span<const double> totals) {
  PreferenceResult r;
  r.pairs = counts.pairs;
  if (counts.pairs == 0) return r;
  const auto mean = [&](int which) { return totals[which] / static_cast<double>(counts.pairs); };
  r.pair_loss = mean(PreferenceTotals::loss);
  r.sft_loss = totals[PreferenceTotals::chosen_tokens_loss] /
               static_cast<double>(std::max<int64_t>(1, counts.chosen_tokens));
  r.loss = r.pair_loss + settings.sft_weight * r.sft_loss;
  r.chosen_reward = mean(PreferenceTotals::chosen_reward);
  r.rejected_reward = mean(PreferenceTotals::rejected_reward);
  r.accuracy = mean(PreferenceTotals::correct);
  r.chosen = mean(PreferenceTotals::chosen);
  r.rejected = mean(PreferenceTotals::rejected);
  return r;
}

int64_t pair_slot_bytes(int64_t rows, int64_t micro_batch, int64_t seq_length) {
  const int64_t texts = micro_batch * data::max_segments(seq_length);
  // The sums that are read back are twice as large as the references.
  return Staging::room(rows * 4) + 2 * Staging::room(texts * 8);
}

void place_pairs(Stream& s, const PairBatch& pairs) {
  if (!pairs.on()) return;
  for (const Tensor& t : {pairs.texts, pairs.references}) place_set(s, t, kAllAxes, Placement::R());
  place_set(s, pairs.texts, kGradientAxes, Placement::V());
  place_set(s, pairs.references, kDataAxes, Placement::V());
}

void TrainProgram::score_pairs(const std::function<const HostBatch*()>& next, const TakeSums& take) {
  LT_CHECK(options_.preference, "expected a program with preference pairs, got {} of them", 0);
  const bool meta = device_.compute.meta() != nullptr;
  Step step = make_step(false);
  if (options_.for_training) store_.complete_weights();
  sums_->clear();
  const HostBatch none;
  bool once = meta && !next;
  const bool last = options_.schedule.rank_of_stage.back() == pipeline_rank();
  std::vector<HostBatch> batches;
  std::vector<double> sums(static_cast<size_t>(slots_->pairs(0).sums.elements()));
  do {
    batches.clear();
    while (batches.size() < static_cast<size_t>(staged() ? slots_->count() : 1)) {
      const HostBatch* batch = once ? &none : next ? next() : nullptr;
      once = false;
      if (!batch) break;
      load(*batch, static_cast<int64_t>(batches.size()), false);
      batches.push_back(*batch);
    }
    if (batches.empty()) break;
    const pipeline::Schedule forward = forward_only(options_.schedule, static_cast<int>(batches.size()));
    StageRun run(decoder_, step, forward);
    run.run(pipeline::lower(forward, pipeline_rank()), [&](int k) { return micro_batch(k); });
    if (meta || !last) continue;
    for (size_t k = 0; k < batches.size(); ++k) {
      staging_.get(sums.data(), slots_->pairs(static_cast<int64_t>(k)).sums);
      device_.groups.check();
      take(batches[k], sums);
    }
  } while (next);
}

}  // namespace ltrain
