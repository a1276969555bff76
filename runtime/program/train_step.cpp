// One optimizer step: TrainProgram::train_step, from the top down.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/elementwise/scale_add.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/moe/router_bias.h"
#include "runtime/program/stage_run.h"
#include "runtime/program/token_experts.h"
#include "runtime/program/train_program.h"

namespace ltrain {

namespace {

/// Choices that biases move to: of `top_k`, experts_per_token fall on real experts, evenly.
BiasTarget bias_target(const MoeConfig& m) {
  const double mean = m.experts_per_token.value_or(0);
  return {m.num_experts, mean / static_cast<double>(m.top_k * m.num_experts)};
}

}  // namespace

/// Passes of a train step over its micro-batches: forwards and backwards of this rank's stages.
class TrainProgram::StepPasses {
 public:
  /// `batches`: empty on meta for a full step.
  StepPasses(TrainProgram& program, Step& step, const std::vector<HostBatch>& batches, const LossTerms& terms,
             EstimatePass estimate, const TokenExperts& by_token);

  int64_t micros() const { return micros_; }
  /// Later passes take each target's label from the model, sampled with random numbers of step `update`.
  void sample_labels(int64_t update);
  void use_targets() { drawn_.reset(); }
  /// Runs all micro-batches.
  void run();
  /// Runs all micro-batches as captured graphs.
  void run_captured();
  const std::vector<ActionTime>& actions() const { return run_.actions(); }

 private:
  bool meta() const { return program_.device_.compute.meta() != nullptr; }
  void load(int64_t micro, int64_t slot) {
    program_.load(meta() ? none_ : batches_[static_cast<size_t>(micro)], slot, true);
  }
  MicroBatch micro_batch(int64_t micro, int64_t slot) const;

  TrainProgram& program_;
  const std::vector<HostBatch>& batches_;
  const HostBatch none_;  // on meta
  const int64_t micros_;
  const bool full_;             // runs all micro-batches of the program's schedule
  const int64_t step_micros_;   // including other replicas
  const double scale_;          // factor of gradients
  const double chosen_weight_;  // PairBatch::chosen_weight
  const double divergence_;     // PreferenceLoss::divergence
  const TokenExperts by_token_;
  std::optional<RowRandom> drawn_;
  const pipeline::Schedule fewer_;  // schedule of a smaller step
  const std::vector<pipeline::PipelineStep> lowered_;
  StageRun run_;
};

TrainProgram::StepPasses::StepPasses(TrainProgram& program, Step& step, const std::vector<HostBatch>& batches,
                                     const LossTerms& terms, EstimatePass estimate,
                                     const TokenExperts& by_token)
    : program_(program),
      batches_(batches),
      micros_(meta() && batches.empty() ? program.options_.accumulation
                                        : static_cast<int64_t>(batches.size())),
      full_(micros_ == program.options_.accumulation && program.ends_at_ != StepEnd::first_micro_batch),
      step_micros_(program.replicas_ ? terms.micros : micros_),
      // Gradients are divided by the number of terms of the loss.
      scale_(terms.count > 0 ? program.loss_scale() / static_cast<double>(terms.count) : 0),
      chosen_weight_(program.options_.preference ? chosen_weight(*program.options_.preference, terms.pairs)
                                                 : 0),
      divergence_(terms.divergence),
      by_token_(by_token),
      fewer_(full_ ? pipeline::Schedule()
                   : first_micros(program.options_.schedule, program.ends_at_ == StepEnd::first_micro_batch
                                                                 ? 1
                                                                 : static_cast<int>(micros_))),
      lowered_(full_ ? std::vector<pipeline::PipelineStep>()
                     : pipeline::lower(fewer_, program.pipeline_rank())),
      run_(program.decoder_, step, full_ ? program.options_.schedule : fewer_,
           program.same_actions(estimate) ? program.repeated_ : nullptr) {
  LT_CHECK(micros_ > 0 && micros_ <= program.options_.accumulation, "expected 1 to {} micro-batches, got {}",
           program.options_.accumulation, micros_);
  if (program.scale_.defined() && !meta()) {
    program.staging_.open();
    program.staging_.put(program.scale_, &scale_);
    program.staging_.close();
  }
  if (!program.staged()) return;
  for (int64_t k = 0; k < micros_; ++k) load(k, k);
}

void TrainProgram::StepPasses::sample_labels(int64_t update) {
  drawn_.emplace();
  drawn_->seed = seed_of_step(program_.options_.seed, update);
  drawn_->stream = hash_name("drawn labels");
}

MicroBatch TrainProgram::StepPasses::micro_batch(int64_t micro, int64_t slot) const {
  MicroBatch mb = program_.micro_batch(slot);
  mb.choices =
      program_.options_.choices == ProgramOptions::Choices::none ? RouterChoices() : program_.choices(micro);
  mb.by_token = by_token_;
  mb.micros = step_micros_;
  mb.grad_scale = scale_;
  if (!meta()) mb.grad_scale_at = program_.scale_;
  mb.loss_scale = program_.loss_scale();
  mb.pairs.chosen_weight = chosen_weight_;
  mb.pairs.loss.divergence = divergence_;
  if (program_.options_.distils())
    mb.distilled = {.teacher = program_.teacher_.get(),
                    .recorded = program_.slots_->top_logits(slot),
                    .loss = program_.options_.distillation,
                    .divergence = program_.sums_->divergence.tensor};
  if (!drawn_) return mb;
  mb.loss_scale = 0;
  mb.drawn = drawn_;
  mb.drawn->sample_index = mb.target_samples;
  return mb;
}

void TrainProgram::StepPasses::run() {
  int64_t loaded = -1;
  run_.run(full_ ? program_.program_ : lowered_, [&](int k) {
    const int64_t slot = k % program_.slots_->count();
    if (!program_.staged() && loaded < k) load(loaded = k, slot);
    return micro_batch(k, slot);
  });
}

void TrainProgram::StepPasses::run_captured() {
  if (program_.staged()) return program_.captured_pass(0, micros_, micros_, [this] { run(); });
  const std::vector<pipeline::PipelineStep>& all = program_.program_;
  for (int64_t k = 0; k < micros_; ++k) {
    load(k, 0);
    // Each micro-batch has two actions, a forward and a backward.
    program_.captured_pass(k, 1, micros_, [&] {
      run_.run({all.begin() + 2 * k, all.begin() + 2 * k + 2}, [this, k](int) { return micro_batch(k, 0); });
    });
  }
}

StepResult TrainProgram::train_step(const std::vector<HostBatch>& given, const OptimizerStep& scheduled,
                                    const AskStop& ask_stop, const std::function<bool()>& ask_news) {
  const bool meta = device_.compute.meta() != nullptr;
  Step step = make_step(true);
  StepResult result;
  result.loss_scale = loss_scale();

  const bool references = options_.preference && options_.preference->references_in_step() &&
                          ends_at_ != StepEnd::first_micro_batch;
  std::vector<HostBatch> referenced;
  if (references) referenced = with_references(given);
  const std::vector<HostBatch>& batches = references ? referenced : given;

  step.enter("loss");
  LossTerms terms = count_terms(batches);
  result.tokens = terms.tokens;
  if (options_.preference && options_.preference->estimates_divergence() &&
      ends_at_ != StepEnd::first_micro_batch)
    terms.divergence = divergence(batches, terms.pairs.pairs);
  sums_->clear();

  const EstimatePass estimate = store_.estimate(scheduled.step);
  const TokenExperts by_token = token_experts_of(scheduled.step);
  StepPasses passes(*this, step, batches, terms, estimate, by_token);
  if (fp8_) fp8_->forget_weights();
  if (estimate != EstimatePass::none) estimate_curvature(estimate, step, passes, scheduled, terms);
  run_micro_batches(passes, scheduled.step, estimate);
  actions_ = passes.actions();
  if (by_token.freezes && staged()) share_token_experts(device_, options_, by_token.table);
  if (ends_at_ != StepEnd::update) return result;

  step.enter("gradients");
  store_.finish_gradients();
  if (step.fp8) fp8_->finish_step(device_.compute, device_.groups.world);
  if (replicas_) sum_gradients_over_replicas();
  store_.add_grad_squares(sums_->squares.tensor);
  if (sums_->mask_flips.on()) store_.add_mask_flips(sums_->mask_flips.tensor);
  if (!meta && ask_stop && ask_stop()) fill_value(device_.compute, sums_->stop.tensor, 1);
  if (!meta && ask_news && ask_news()) fill_value(device_.compute, sums_->news.tensor, 1);
  sums_->reduce(device_.groups, "reading the loss and the gradient norm");
  const bool agrees = options_.optimizer.diloco.agrees_after(scheduled.step);
  if (agrees) sums_->reduce_requests_over_sites(device_.groups);
  if (replicas_) sums_->reduce_over_replicas(*replicas_);

  OptimizerStep args = scheduled;
  if (!meta) {
    read_result(result, terms);
    if (replicas_) result.applies = replicas_->commit(result.stop_requested);
    if (!result.applies || !accept(result)) return result;
    if (options_.clip_grad > 0)
      args.grad_scale = std::min(1.0, options_.clip_grad / (result.grad_norm + 1e-6));
    args.grad_scale /= result.loss_scale;
  }
  step.enter("optimizer");
  update(args, result);
  if (options_.optimizer.diloco.on()) synchronize_sites(scheduled.step, agrees);
  return result;
}

TrainProgram::LossTerms TrainProgram::count_terms(const std::vector<HostBatch>& batches) {
  int64_t counted = 0;
  for (const HostBatch& b : batches)
    for (const int32_t t : b.targets) counted += t >= 0;
  PairCounts pairs;
  if (options_.preference)
    for (const HostBatch& b : batches) count_pairs(pairs, b, device_.groups.context.rank());
  std::array<int64_t, 3> counts{counted, pairs.pairs, pairs.chosen_tokens};
  sum_counts(std::span(counts).first(options_.preference ? 3 : 1));
  int64_t micros = static_cast<int64_t>(batches.size());
  if (replicas_) sum_counts_over_replicas(counts[0], micros);
  LossTerms terms{.tokens = counts[0], .pairs = {counts[1], counts[2]}, .count = counts[0], .micros = micros};
  if (options_.preference) terms.count = terms.pairs.pairs;
  return terms;
}

void TrainProgram::sum_counts_over_replicas(int64_t& tokens, int64_t& micros) {
  std::array<int64_t, 2> counts{tokens, micros};
  Tensor t;
  t.data = counts.data(), t.dtype = DType::i64, t.shape = {2};
  replicas_->sum(t);
  tokens = counts[0], micros = std::max<int64_t>(1, counts[1]);  // undefined after a failure
}

void TrainProgram::sum_gradients_over_replicas() {
  for (const Tensor& gradients : store_.stored_gradients())
    through_host(device_.compute, gradients, [this](const Tensor& t) { replicas_->sum(t); });
}

bool TrainProgram::same_actions(EstimatePass estimate) const {
  // Rounded gradients of tied weights are held in a wider type from one stage's action to another's, so their
  // actions differ.
  return !options_.sharding.shards_gradients() && estimate == EstimatePass::none &&
         dtype_size(options_.precision.grad) >= 4;
}

void TrainProgram::estimate_curvature(EstimatePass estimate, Step& step, StepPasses& passes,
                                      const OptimizerStep& scheduled, const LossTerms& terms) {
  store_.begin_step(passes.micros(), scheduled.step);
  store_.begin_estimate(estimate);
  store_.gather_weights();
  if (estimate == EstimatePass::sampled_labels) passes.sample_labels(scheduled.step);
  passes.run();
  passes.use_targets();
  step.enter("gradients");
  store_.finish_gradients();
  store_.end_estimate(scheduled, static_cast<double>(terms.tokens), loss_scale());
  sums_->clear();
  if (fp8_ && estimate == EstimatePass::moved_weights) fp8_->forget_weights();
}

void TrainProgram::run_micro_batches(StepPasses& passes, int64_t update, EstimatePass estimate) {
  // Libraries initialize in the first step. After an estimate pass, weights that a graph would gather are
  // already gathered.
  const bool captured =
      scale_.defined() && !device_.compute.meta() && steps_ > 0 && estimate == EstimatePass::none;
  ++steps_;
  store_.begin_step(passes.micros(), update);
  if (captured) {
    passes.run_captured();
  } else {
    store_.gather_weights();
    passes.run();
  }
}

void TrainProgram::captured_pass(int64_t first, int64_t count, int64_t micros,
                                 const std::function<void()>& pass) {
  const bool last = first + count == micros;
  std::unique_ptr<Graph>& graph = graphs_[first > 0][!last && device_.groups.mesh.world() > 1];
  if (graph) {
    store_.replayed(count, first == 0);
  } else {
    graph = device_.compute.capture(
        [&] {
          if (first == 0) store_.gather_weights(true);
          pass();
          if (last) store_.end_reductions();
        },
        device_.groups.streams());
  }
  const OpRange range(device_.compute, "recorded_micro_batch");
  graph->replay();
}

void TrainProgram::read_result(StepResult& result, const LossTerms& terms) {
  const StepSums::Values sums = sums_->read(staging_);
  device_.groups.check();
  result.experts = expert_statistics(sums);
  if (terms.tokens > 0) {
    const double tokens = static_cast<double>(terms.tokens);
    result.loss = sums[sums_->loss] / tokens;
  }
  result.means = sums_->means(sums, terms.tokens);
  if (sums_->mask_flips.on()) {
    const std::span<const double> flips = sums.of(sums_->mask_flips);
    // Each group has as many newly masked weights as revived ones.
    if (flips[1] > 0) result.means.emplace_back("mask_flip_rate", 2 * flips[0] / flips[1]);
  }
  if (options_.distils()) {
    const double kl = terms.tokens > 0 ? sums[sums_->divergence] / static_cast<double>(terms.tokens) : 0;
    result.distillation = {.ce_loss = result.loss, .kl = kl};
    result.loss = options_.distillation.of(result.loss, kl);
  }
  if (options_.preference) {
    PreferenceSettings settings = *options_.preference;
    settings.divergence = terms.divergence;
    result.preference = preference_result(settings, terms.pairs, sums.of(sums_->pairs));
    result.loss = result.preference->loss;
  }
  double squares = 0;  // summed in the order of the layers, independent of the rank that has them
  for (const double of_segment : sums.of(sums_->squares)) squares += of_segment;
  result.grad_norm = std::sqrt(squares) / result.loss_scale;
  result.stop_requested = sums[sums_->stop] > 0;
  result.news = sums[sums_->news] > 0;
  const bool finite_loss = std::isfinite(sums[sums_->loss]);
  result.overflow = scaler_ && finite_loss && !std::isfinite(squares);
  result.finite = finite_loss && std::isfinite(result.loss) && (std::isfinite(squares) || result.overflow);
}

bool TrainProgram::accept(StepResult& result) {
  result.diverged = options_.stop_loss > 0 && result.loss > options_.stop_loss;
  result.skipped =
      !result.overflow && options_.skip_grad_norm > 0 && result.grad_norm > options_.skip_grad_norm;
  if (scaler_ && result.finite) scaler_->note(result.overflow);
  return result.finite && !result.diverged && !result.skipped && !result.overflow;
}

/// Share of all experts, of all layers, that no token chose.
static double untouched_share(const ExpertStatistics& experts) {
  double untouched = 0, all = 0;
  for (const std::vector<double>& layer : experts.chosen) {
    all += static_cast<double>(layer.size());
    for (const double tokens : layer) untouched += tokens == 0;
  }
  return untouched / std::max(1.0, all);
}

void TrainProgram::update(const OptimizerStep& args, StepResult& result) {
  MetaTrace* meta = device_.compute.meta();
  const bool skips = options_.offload.skip_untouched && !meta;
  const int64_t moved = store_.moved_bytes();
  if (skips) store_.skip_untouched(result.experts.chosen);
  if (meta) meta->set_model_work(false);
  store_.update(args);
  if (skips) {
    result.means.emplace_back("untouched_experts", untouched_share(result.experts));
    result.means.emplace_back("offload_moved_mib",
                              static_cast<double>(store_.moved_bytes() - moved) / (1 << 20));
  }
  if (meta) meta->set_model_work(true);
  const MoeConfig& moe = options_.model.moe;
  const double rate = moe.bias_update_rate;
  if (router_bias_.defined() && rate > 0 && !options_.optimizer.freeze_routers)
    move_router_bias(device_.compute, router_bias_, sums_->reduced(sums_->experts), rate, bias_target(moe));
}

void TrainProgram::synchronize_sites(int64_t step, bool agrees) {
  MetaTrace* meta = device_.compute.meta();
  if (meta) meta->set_model_work(false);
  store_.synchronize_sites(step);
  if (agrees && router_bias_.defined() && device_.groups.sites.size() > 1) {
    device_.groups.sum_over_sites(device_.compute, router_bias_);
    scale_add(device_.compute, router_bias_, 1.0 / device_.groups.sites.size(), {}, 0);
  }
  if (meta) meta->set_model_work(true);
}

}  // namespace ltrain
