#include "runtime/program/preference_step.h"

#include <algorithm>
#include <cmath>

#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/layer_prefix.h"
#include "runtime/program/stage_run.h"
#include "runtime/program/train_program.h"

namespace ltrain {

void count_pairs(PairCounts& n, const data::Batch& b, int context_rank) {
  if (context_rank == 0) n.pairs += b.pairs;
  for (size_t i = 0; i < b.segments.size(); ++i)
    n.chosen_tokens += b.targets[i] >= 0 && b.segments[i] >= 0 && b.segments[i] % 2 == 0;
}

double divergence_of(std::span<const double> totals, int64_t examples) {
  const double sum = totals[PreferenceTotals::divergence];
  // NaN stays, and ends the step as a loss that is not finite.
  return examples == 0 || sum < 0 ? 0 : sum / static_cast<double>(examples);
}

double chosen_weight(const PreferenceSettings& settings, const PairCounts& counts) {
  if (counts.chosen_tokens == 0) return 0;
  return settings.sft_weight * static_cast<double>(counts.pairs) / static_cast<double>(counts.chosen_tokens);
}

namespace {

/// Means over the examples of each label; 0 where a step has none.
PreferenceResult example_result(const PreferenceSettings& settings, PreferenceResult r,
                                std::span<const double> totals) {
  r.loss = r.pair_loss;
  r.desirable = static_cast<int64_t>(std::llround(totals[PreferenceTotals::desirable]));
  r.divergence = settings.divergence;
  const auto mean = [&](int which, int64_t count) {
    return count > 0 ? totals[which] / static_cast<double>(count) : 0.0;
  };
  const int64_t undesirable = r.pairs - r.desirable;
  r.chosen_reward = mean(PreferenceTotals::chosen_reward, r.desirable);
  r.rejected_reward = mean(PreferenceTotals::rejected_reward, undesirable);
  r.chosen = mean(PreferenceTotals::chosen, r.desirable);
  r.rejected = mean(PreferenceTotals::rejected, undesirable);
  return r;
}

}  // namespace

PreferenceResult preference_result(const PreferenceSettings& settings, const PairCounts& counts,
                                   std::span<const double> totals) {
  PreferenceResult r;
  r.pairs = counts.pairs;
  if (counts.pairs == 0) return r;
  const auto mean = [&](int which) { return totals[which] / static_cast<double>(counts.pairs); };
  r.pair_loss = mean(PreferenceTotals::loss);
  if (settings.labelled()) return example_result(settings, r, totals);
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
  // The sums that are read back are twice as large as the references. Labels, with kto, are smaller still.
  return Staging::room(rows * 4) + Staging::room(texts * 2) + 2 * Staging::room(texts * 8);
}

void place_pairs(Stream& s, const PairBatch& pairs) {
  if (!pairs.on()) return;
  place_set(s, pairs.texts, kAllAxes, Placement::R());
  place_set(s, pairs.texts, kGradientAxes, Placement::V());
  for (const Tensor& t : {pairs.references, pairs.labels}) {
    if (!t.defined()) continue;
    place_set(s, t, kAllAxes, Placement::R());
    place_set(s, t, kDataAxes, Placement::V());
  }
}

void TrainProgram::score_pairs(const std::function<const HostBatch*()>& next, const TakeSums& take) {
  LT_CHECK(options_.preference, "expected a program with preference pairs, got {} of them", 0);
  const bool meta = device_.compute.meta() != nullptr;
  const Step own = make_step(false);
  Step step = reference_ ? reference_->step_of(own) : own;
  const Decoder& reference = reference_ ? reference_->decoder() : decoder_;
  if (options_.for_training) step.params.complete_weights();
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
    StageRun run(reference, step, forward);
    run.run(pipeline::lower(forward, pipeline_rank()), [&](int k) { return micro_batch(k); });
    if (meta || !last) continue;
    for (size_t k = 0; k < batches.size(); ++k) {
      staging_.get(sums.data(), slots_->pairs(static_cast<int64_t>(k)).sums);
      device_.groups.check();
      take(batches[k], sums);
    }
  } while (next);
}

void TrainProgram::run_forwards(const Decoder& model, Step& step, const std::vector<HostBatch>& batches,
                                const std::function<MicroBatch(int)>& slot,
                                const std::function<void(int64_t, int64_t)>& done) {
  const bool meta = device_.compute.meta() != nullptr;
  const auto micros = meta && batches.empty() ? options_.accumulation : static_cast<int64_t>(batches.size());
  step.params.complete_weights();
  const HostBatch none;
  const int64_t together = staged() ? micros : 1;  // micro-batches of a pass
  const pipeline::Schedule forward = forward_only(options_.schedule, static_cast<int>(together));
  for (int64_t first = 0; first < micros; first += together) {
    for (int64_t k = 0; k < together; ++k)
      load(meta ? none : batches[static_cast<size_t>(first + k)], k, false);
    StageRun(model, step, forward).run(pipeline::lower(forward, pipeline_rank()), slot);
    for (int64_t k = 0; k < together; ++k) done(first + k, k);
  }
}

std::vector<HostBatch> TrainProgram::with_references(const std::vector<HostBatch>& batches) {
  Step own = make_step(false);
  own.adapters = false;
  std::optional<FrozenModel::Timed> timed;
  std::optional<LayerPrefix> named;
  if (reference_) {
    timed.emplace(*reference_, device_.compute);
    named.emplace("reference.");
  }
  Step step = reference_ ? reference_->step_of(own) : own;
  sums_->clear();
  const bool reads = !device_.compute.meta() && options_.schedule.rank_of_stage.back() == pipeline_rank();
  std::vector<HostBatch> referenced = batches;
  std::vector<double> sums(static_cast<size_t>(slots_->pairs(0).sums.elements()));
  run_forwards(
      reference_ ? reference_->decoder() : decoder_, step, batches, [this](int k) { return micro_batch(k); },
      [&](int64_t micro, int64_t slot) {
        if (!reads) return;  // the head, which reads them, is there
        staging_.get(sums.data(), slots_->pairs(slot).sums);
        device_.groups.check();
        std::vector<double>& references = referenced[static_cast<size_t>(micro)].references;
        for (size_t text = 0; text < references.size(); ++text) references[text] = sums[2 * text];
      });
  return referenced;
}

double TrainProgram::divergence(const std::vector<HostBatch>& batches, int64_t examples) {
  Step step = make_step(false);
  sums_->clear();
  run_forwards(
      decoder_, step, batches,
      [this](int k) {
        MicroBatch mb = micro_batch(k);
        mb.pairs.totalled = true;
        return mb;
      },
      [](int64_t, int64_t) {});
  sums_->reduce(device_.groups, "reading the divergence from the reference");
  if (device_.compute.meta()) return 0;
  const StepSums::Values sums = sums_->read(staging_);
  device_.groups.check();
  return divergence_of(sums.of(sums_->pairs), examples);
}

}  // namespace ltrain
