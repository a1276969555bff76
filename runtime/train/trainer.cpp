#include "runtime/train/trainer.h"

#include <omp.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/fault_point.h"
#include "kernels/base/limits.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/tensor/device.h"
#include "parallel/comm/host_collectives.h"
#include "parallel/mesh/mesh.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/training_state.h"
#include "runtime/checkpoint/upcycle.h"
#include "runtime/data/batch_loader.h"
#include "runtime/launch/output.h"
#include "runtime/plan/matmul_peak.h"
#include "runtime/program/attention_report.h"
#include "runtime/program/experts_report.h"
#include "runtime/program/lr_schedule.h"
#include "runtime/program/take_device.h"
#include "runtime/telemetry/exposed.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/train/evaluator.h"
#include "runtime/train/expert_report.h"
#include "runtime/train/step_profile.h"
#include "runtime/weights/load.h"

namespace ltrain {
namespace {

constexpr double kMiB = 1048576.0, kGiB = 1073741824.0;

void write_file(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream out(path + ".tmp");
  out << text;
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(path + ".tmp", path, error);
  if (!out) fail_system(path + ".tmp: cannot be written", errno, ExitCode::storage);
  if (error) fail_system(path + ": cannot be written", error.value(), ExitCode::storage);
}

/// Largest resident memory of this process so far (VmHWM); 0 where /proc does not say.
int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::atoll(line.c_str() + 6) * 1024;
  return 0;
}

/// Bytes that this rank has sent: by the axes that its groups span, named as the plan names them, and by the
/// comm_axis of each.
std::map<std::string, int64_t> wire_by_axis(const Groups& groups, bool by_group) {
  std::map<std::string, int64_t> sums;
  for (const Communicator* c : groups.all()) {
    if (c->size() == 1) continue;
    const AxisSet longer = long_axes(c->axes(), [&](Axis a) { return groups.size(a); });
    sums[by_group ? comm_axis(c->axes()) : std::string(axis_set_name(longer))] += c->wire_bytes();
  }
  return sums;
}

/// sums += now - before, by key.
void add_difference(std::map<std::string, int64_t>& sums, const std::map<std::string, int64_t>& now,
                    const std::map<std::string, int64_t>& before) {
  for (const auto& [key, value] : now) {
    const auto earlier = before.find(key);
    sums[key] += value - (earlier == before.end() ? 0 : earlier->second);
  }
}

/// One rank's training run.
class Trainer {
 public:
  Trainer(const Recipe& recipe, Job& job, const TrainerOptions& options)
      : recipe_(recipe), job_(job), options_(options), lead_(job.info().rank == 0) {
    mesh_ = mesh_of(recipe, job.info().rank);
  }

  ExitCode run() {
    set_up();
    ExitCode code = ExitCode::done;
    while (step_ < end_step_) {
      const bool stop = train_step();
      const bool last = step_ == end_step_;
      const bool evaluates = recipe_.train.eval_interval > 0 && !recipe_.data.eval.empty() &&
                             (step_ % recipe_.train.eval_interval == 0 || last);
      const int64_t every = recipe_.checkpoint.save_interval;
      // Who asks to stop has seconds, and an evaluation may take minutes: the save comes first.
      if ((evaluates && !stop && !evaluate()) || stop) {
        if (evaluates) say({fmt::format("no evaluation at step {}: the run was asked to stop", step_)});
        if (saved_step_ != step_ && saves_at_all(recipe_)) save();
        code = last ? ExitCode::done : ExitCode::preempted;
        break;
      }
      if ((every > 0 && step_ % every == 0) || (last && recipe_.checkpoint.save_at_end)) save();
    }
    finish(code);
    return code;
  }

 private:
  void set_up() {
    const double begin = steady_seconds();
    job_.section("setup");
    const RankInfo& me = job_.info();
    const int threads = threads_per_rank(recipe_);
    omp_set_num_threads(threads);
    device_ = device_of(recipe_);
    profile_ = default_profile(device_);
    const MakeGroup job_group = [&](const GroupRequest& r) {
      return job_.new_group(r.name, r.axes, r.ranks);
    };
    control_group_ = job_.new_control_group("checkpoint", kAllAxes, mesh_.group(kAllAxes));
    control_ = make_worker_stream("checkpoint");
    take_device();
    agree_on_levels();
    agree_on_pipeline();
    // The same pass that `ltrain plan` makes: checks the placements of the whole step, sizes the arena.
    const Plan totals = make_plan(recipe_, profile_, {me.rank}, &layout_);
    plan_ = totals.ranks.at(0);
    kinds_ = totals.kinds;
    agree_on_flops(totals);
    if (!options_.force) check_memory(totals);
    check_address_space(plan_.host_bytes, threads);
    if (lead_) {
      std::error_code error;
      std::filesystem::create_directories(recipe_.output_dir, error);
      if (error) fail(ExitCode::storage, "output_dir {}: {}", recipe_.output_dir, error.message());
      write_file(recipe_.output_dir + "/recipe.yaml", dump_yaml(recipe_));
      write_file(recipe_.output_dir + "/plan.json", plan_json(totals));
    }
    const ProgramOptions options = program_options(recipe_, layout_);
    const auto side_stream = [&](const std::string& name) { return make_side_stream(device_, name); };
    GroupSet::Options groups = group_options(options);
    MakeGroup make_group = job_group;
    if (device_ != DeviceKind::cpu && me.world_size > 1) {
      groups.together = true;
      make_group = [&](const GroupRequest& r) {
        return job_.new_gpu_group(r.name, r.axes, r.ranks, r.messages);
      };
    }
    groups_ = std::make_unique<GroupSet>(mesh_, make_group, side_stream, groups);
    for (const Communicator* c : groups_->groups().all())
      if (c->size() > 1) comm_axes_.insert(comm_axis(c->axes()));
    compute_ = make_compute_stream(device_, "compute");
    std::string why_not_experts_wgmma;
    if (device_ != DeviceKind::cpu) {
      try_attention_kernels(recipe_, card_.capability, *compute_);
      why_not_experts_wgmma = try_experts_kernels(recipe_, card_.capability, *compute_);
    }
    allocate();
    offload_memory_.emplace(options, device_, offload_folders(recipe_), plan_.offloaded.activations);
    program_ = std::make_unique<TrainProgram>(
        options, Device{*compute_, *arena_, groups_->groups(), host_.get(), offload_memory_->places()});
    state_ =
        std::make_unique<TrainingState>(recipe_, program_->parameters(), *control_group_, *control_, me.rank);
    const TrainingState::Resumed resumed = resume_or_load();
    step_ = saved_step_ = resumed.step;
    end_step_ = end_step(recipe_);
    if (options_.steps > 0) end_step_ = std::min(end_step_, step_ + options_.steps);
    end_step_ = static_cast<int64_t>(sum_over_ranks(lead_ ? static_cast<double>(end_step_) : 0));
    position_ = resumed.position;
    skipped_ = resumed.skipped_steps;
    earlier_updates_ = resumed.earlier_updates;
    if (LossScaler* scaler = program_->loss_scaler(); scaler && resumed.loss_scale)
      scaler->restore(*resumed.loss_scale);
    const std::vector<std::string> begun_with = resumed.loaded ? std::vector<std::string>{} : begin_weights();
    synchronize();
    std::vector<std::string> folder_notes;
    if (saves_at_all(recipe_)) folder_notes = state_->open_writer(step_, end_step_, host_.get());
    step_profile_ = std::make_unique<StepProfile>(recipe_, profile_, me.rank, me.world_size);
    data::LoaderOptions data = loader_options(recipe_, mesh_);
    if (data.packing.on()) data.packing.eod = end_of_document(recipe_);
    loader_ = std::make_unique<data::BatchLoader>(data, position_.cursor);
    evaluator_ = std::make_unique<Evaluator>(recipe_, mesh_);
    batches_.resize(micro_batches_per_step(recipe_));
    const std::string attention =
        device_ == DeviceKind::cpu ? "" : attention_report(recipe_, card_.capability, *compute_);
    const std::string experts =
        device_ == DeviceKind::cpu ? "" : experts_report(recipe_, card_.capability, why_not_experts_wgmma);
    if (lead_) {
      metrics_ = std::make_unique<MetricsWriter>(recipe_.output_dir, recipe_.log.tensorboard, step_);
      progress_ = std::make_unique<Progress>(recipe_.log.format, recipe_.train.log_interval);
      for (const std::string& note : recipe_.notes) progress_->line("note: " + note);
      if (device_ != DeviceKind::cpu && recipe_.debug.shared_gpu)
        progress_->line("debug.shared_gpu: ranks share GPUs over sockets; timings and tokens/s mean nothing");
      for (const auto& [given, key] : {std::pair(recipe_.debug.shared_gpu, "debug.shared_gpu: true"),
                                       std::pair(!recipe_.deterministic, "deterministic: false")})
        if (device_ == DeviceKind::cpu && given)
          progress_->line(fmt::format("note: {} has no effect on the CPU", key));
      if (device_ != DeviceKind::cpu) progress_->line("attention: " + attention);
      if (!experts.empty()) progress_->line("experts: " + experts);
      for (const std::string& note : offload_memory_->notes()) progress_->line(note);
      for (const std::string& note : resumed.notes) progress_->line(note);
      for (const std::string& note : begun_with) progress_->line(note);
      for (const std::string& note : folder_notes) progress_->line("checkpoint: " + note);
      progress_->line(
          fmt::format("{}: {} {} parameters, {} rank{} of {}, {}; {} sequences of {} tokens a step, {} "
                      "micro-batch{} a rank",
                      recipe_.name, format_count(static_cast<double>(totals.parameters)),
                      recipe_.model.family->name, me.world_size, me.world_size == 1 ? "" : "s",
                      what_a_rank_has(threads), precision_text(recipe_), recipe_.train.global_batch_size,
                      recipe_.data.seq_length, batches_.size(), batches_.size() == 1 ? "" : "es"));
      if (step_ < end_step_)
        progress_->line(fmt::format(
            "memory a rank: arena {:.1f} MiB, total {:.1f} MiB planned; ready in {:.2f} s; steps {} to {}",
            plan_.arena.arena_bytes / kMiB, plan_.total_bytes / kMiB, steady_seconds() - begin, step_ + 1,
            end_step_));
    }
    started_ = steady_seconds();
    first_step_ = step_;
  }

  /// The state after a step of this run, or of another that checkpoint.load asks for.
  TrainingState::Resumed resume_or_load() {
    TrainingState::Resumed resumed = state_->resume();
    const LoadParts parts = recipe_.checkpoint.load_parts;
    if (resumed.loaded || parts == LoadParts::weights) return resumed;
    const auto from = open_loaded_checkpoint(recipe_, true, *control_group_, *control_, resumed.notes);
    TrainingState::Resumed loaded =
        parts == LoadParts::all ? state_->go_on(*from) : state_->take_states(*from);
    loaded.notes.insert(loaded.notes.begin(), resumed.notes.begin(), resumed.notes.end());
    return loaded;
  }

  /// Of a fresh start. Returns notes on weights that are not the seed's.
  std::vector<std::string> begin_weights() {
    program_->initialize();
    if (recipe_.checkpoint.upcycle) return state_->upcycle();
    if (recipe_.checkpoint.load_path)
      return load_weights(recipe_, program_->parameters(), *control_group_, *control_);
    return {};
  }

  void synchronize() {
    compute_->synchronize();
    groups_->synchronize();
    if (offload_memory_) offload_memory_->synchronize();
  }

  /// A GPU of its own for each rank, and ranks of one kind.
  void take_device() {
    const std::string place = ltrain::take_device(device_, job_.info().local_rank);
    if (lead_ && !place.empty()) place_ = " (rank 0: " + place + ")";
    card_ = device_info(device_);
    const int world = control_group_->size();
    if (world == 1) return;
    const std::vector<int64_t> all = gather_numbers(
        *control_group_, *control_, {static_cast<int64_t>(device_), card_.identity[0], card_.identity[1]});
    for (int a = 0; a < world; ++a)
      for (int b = 0; b < a; ++b) {
        const int64_t *x = &all[3 * static_cast<size_t>(a)], *y = &all[3 * static_cast<size_t>(b)];
        if (x[0] != y[0])
          fail(ExitCode::usage,
               "ranks {} and {} run on different devices ({} and {}): give device: cpu or cuda", b, a,
               device_name(static_cast<DeviceKind>(y[0])), device_name(static_cast<DeviceKind>(x[0])));
        if (device_ != DeviceKind::cpu && !recipe_.debug.shared_gpu && x[1] == y[1] && x[2] == y[2])
          fail(ExitCode::usage,
               "ranks {} and {} have the same GPU: each rank needs one of its own; device: cpu works", b, a);
      }
  }

  /// "2 threads (avx512)", "one NVIDIA H200".
  std::string what_a_rank_has(int threads) const {
    if (device_ != DeviceKind::cpu) return "one " + card_.name + place_;
    return fmt::format("{} thread{} ({})", threads, threads == 1 ? "" : "s", cpu_isa_name());
  }

  /// Each kind of memory in one piece of exactly the planned size.
  void allocate() {
    try {
      arena_ = std::make_unique<Arena>(device_, plan_.arena.arena_bytes);
      if (device_ != DeviceKind::cpu) host_ = Arena::staging(device_, plan_.staging_bytes);
    } catch (const Error& e) {
      fail(e.code(), "{}\n{}", e.what(), memory_text(plan_));
    }
  }

  /// The ranks of a node are what each rank's own node has.
  void agree_on_levels() {
    const Parallel& p = recipe_.parallel;
    if (p.shard_group != kNode && p.hierarchical_reduction != kNode) return;
    const std::vector<int64_t> most = max_over(*control_group_, *control_, {p.shard_ranks, -p.shard_ranks});
    if (most[0] != -most[1])
      fail(ExitCode::usage,
           "nodes have {} to {} ranks, and parallel.{}: node needs as many on each: give a number of ranks "
           "that divides every node's, or start as many on each node",
           -most[1], most[0], p.levels_key());
  }

  /// What MFU is a share of: the model FLOPs of all ranks, and the rate of their fastest matmuls. On a CPU
  /// that `ltrain bench` has not measured the first runs measure that rate, all ranks at the same time, and
  /// keep the best.
  void agree_on_flops(const Plan& plan) {
    job_flops_ = sum_over_ranks(plan_.model_flops);
    const double world = job_.info().world_size;
    if (device_ != DeviceKind::cpu || profile_.measured) {
      peak_.begin(plan.peak_flops * world);
      return;
    }
    const DType type = compute_type();
    const int threads = threads_per_rank(recipe_), ranks = static_cast<int>(recipe_.launch.ranks_on_host);
    const MatmulPeaks peaks(matmul_peaks_path());
    const MatmulPeaks::Kept kept = lead_ ? peaks.find(type, threads, ranks) : MatmulPeaks::Kept();
    double measured = 0;
    if (sum_over_ranks(kept.enough()) == 0) {
      measured = sum_over_ranks(measure_matmul_peak(type)) / world;
      if (lead_) peaks.keep(type, threads, ranks, measured);
    }
    peak_.begin(std::max(measured, kept.flops) * world);
  }

  DType compute_type() const { return precision_policy(std::string(to_string(recipe_.precision))).compute; }

  /// Model FLOPs a second over the peak. Says once that a measured peak is too low.
  double mfu(double rate) {
    const double share = peak_.of(rate);
    const bool benched = device_ != DeviceKind::cpu || profile_.measured;
    const std::string note = peak_.note(step_, benched);
    if (note.empty()) return share;
    say({note});
    if (!benched)
      MatmulPeaks(matmul_peaks_path())
          .exceeded(compute_type(), threads_per_rank(recipe_), static_cast<int>(recipe_.launch.ranks_on_host),
                    rate / job_.info().world_size);
    return share;
  }

  double sum_over_ranks(double value) { return sum_over(*control_group_, *control_, value); }

  /// The order of work on the pipeline, and what auto computes again, are chosen on one rank: they follow
  /// from a machine profile.
  void agree_on_pipeline() {
    if (recipe_.parallel.pipeline == 1 && recipe_.recompute.granularity != RecomputeGranularity::automatic)
      return;
    const std::string text = lead_ ? pack(pipeline_layout(recipe_, profile_)) : "";
    layout_ = unpack_pipeline_layout(broadcast_text(*control_group_, *control_, text));
  }

  /// One step; true when some rank was asked to stop.
  bool train_step() {
    job_.section("step", step_ + 1);
    LT_FAULT_POINT("train.step");
    say(state_->poll());
    step_profile_->begin(step_ + 1);
    const double begin = steady_seconds(), data_before = loader_->wait_seconds();
    const Stream::Waits waited_before = compute_->waited();
    const int64_t batch = global_batch_after(recipe_, position_.samples);
    const size_t micros =
        static_cast<size_t>(batch * micro_batches_per_step(recipe_) / recipe_.train.global_batch_size);
    batches_.resize(micros);
    for (HostBatch& b : batches_) {
      LT_FAULT_POINT("train.batch");
      loader_->next(b);
    }
    step_profile_->host("data", begin, steady_seconds());
    if (LT_FAULT_POINT("train.loss") == FaultAction::nan) poison();
    AdamwArgs a;
    const int64_t update = step_ + 1 - skipped_;  // schedules go on with updates, as Megatron-LM's do
    a.lr = learning_rate(recipe_.optimizer, recipe_.schedule, update);
    a.beta1 = recipe_.optimizer.adam_beta1;
    a.beta2 = recipe_.optimizer.adam_beta2;
    a.eps = recipe_.optimizer.adam_eps;
    a.weight_decay = weight_decay(recipe_.optimizer, recipe_.schedule, update, recipe_.train.train_steps);
    a.step = earlier_updates_ + update;  // updates, of which moments are averages
    const auto wire_before = wire_by_axis(groups_->groups(), false),
               group_before = wire_by_axis(groups_->groups(), true);
    program_->set_matmul_precision(matmul_precision_at(recipe_, step_ + 1));
    const StepResult r = program_->train_step(batches_, a, [this] { return asked_to_stop(); });
    planned_wire_ += kinds_.is_other(a.step) ? plan_.other_wire_bytes : plan_.train_wire_bytes;
    if (step_profile_->running()) {
      synchronize();
      say(step_profile_->end(batch == recipe_.train.global_batch_size && !kinds_.is_other(a.step)));
    }
    add_difference(train_wire_, wire_by_axis(groups_->groups(), false), wire_before);
    add_difference(train_wire_by_group_, wire_by_axis(groups_->groups(), true), group_before);
    if (!r.finite) not_finite(r);
    if (r.diverged)
      fail(ExitCode::no_progress,
           "step {}: loss {:.4f} is above train.stop_loss = {}; no update was made and nothing was "
           "saved.\n{}: lower optimizer.lr, or raise train.stop_loss.",
           step_ + 1, r.loss, recipe_.train.stop_loss, last_checkpoint());
    note_skip(r);
    ++step_;
    position_.cursor += batch;
    position_.samples += batch;
    position_.tokens += batch * recipe_.data.seq_length;
    LT_CHECK(position_.cursor == loader_->cursor(), "the loader is at sample {}, the trainer at {}",
             loader_->cursor(), position_.cursor);
    if (!r.overflow) state_->note_health(r.loss, r.grad_norm);
    const LossScaler* scaler = program_->loss_scaler();
    state_->note_skips(skipped_, scaler ? std::optional(scaler->state()) : std::nullopt);
    check_high_water();
    if (lead_)
      report(r, batch, a.lr, steady_seconds() - begin, loader_->wait_seconds() - data_before,
             exposed_by_axis(compute_->waited(), waited_before));
    return r.stop_requested;
  }

  bool asked_to_stop() const { return job_.stop_requested() || out_of_time(); }

  /// One clock for all: that of rank 0, which says why the run ended.
  bool out_of_time() const {
    return lead_ && recipe_.train.exit_duration_in_mins &&
           steady_seconds() - started_ > *recipe_.train.exit_duration_in_mins * 60;
  }

  /// Fault injection: makes this step's loss and gradients NaN.
  void poison() {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const Tensor& w : program_->parameters().held_values()) fill_value(*compute_, w.flat(0, {1}), nan);
  }

  std::string last_checkpoint() const {
    return saved_step_ > 0 ? fmt::format("The last checkpoint is of step {}", saved_step_)
                           : "There is no checkpoint of this run yet";
  }

  /// A step without an update; too many in a row end the run.
  void note_skip(const StepResult& r) {
    overflows_in_a_row_ = r.overflow ? overflows_in_a_row_ + 1 : 0;
    if (!r.overflow) skipped_in_a_row_ = r.skipped ? skipped_in_a_row_ + 1 : 0;
    skipped_ += r.skipped || r.overflow;
    if (r.overflow) return note_overflow(r);
    if (!r.skipped) return;
    say({fmt::format(
        "step {}: the gradient norm {:.3g} is above train.skip_grad_norm = {}: no update was made", step_ + 1,
        r.grad_norm, recipe_.train.skip_grad_norm)});
    if (skipped_in_a_row_ < recipe_.train.max_skipped_steps) return;
    fail(ExitCode::no_progress,
         "step {}: {} steps in a row made no update, as many as train.max_skipped_steps allows: the last "
         "gradient norm is {:.3g}, train.skip_grad_norm {}.\n{}: raise train.skip_grad_norm, or go on from "
         "an older one with a lower optimizer.lr.",
         step_ + 1, skipped_in_a_row_, r.grad_norm, recipe_.train.skip_grad_norm, last_checkpoint());
  }

  void note_overflow(const StepResult& r) {
    const double next = program_->loss_scaler()->scale();
    say({fmt::format(
        "step {}: gradients overflow with a loss scale of {:g}: no update was made; the next is {:g}",
        step_ + 1, r.loss_scale, next)});
    if (overflows_in_a_row_ < recipe_.loss_scale.max_skipped_steps) return;
    fail(ExitCode::no_progress,
         "step {}: gradients overflowed in {} steps in a row, as many as loss_scale.max_skipped_steps "
         "allows; the loss scale is {:g}, its minimum {:g}.\n{}: {}",
         step_ + 1, overflows_in_a_row_, next, recipe_.loss_scale.settings.minimum, last_checkpoint(),
         next > recipe_.loss_scale.settings.minimum
             ? "raise loss_scale.max_skipped_steps, or begin with a smaller loss_scale.initial."
             : "the gradients themselves are too large for fp16: use precision: bf16, or go on from an older "
               "one with a lower optimizer.lr.");
  }

  [[noreturn]] void not_finite(const StepResult& r) {
    const bool wide = recipe_.precision == Precision::fp32 || recipe_.precision == Precision::fp64;
    const std::string wider =
        wide ? ""
             : fmt::format(", or use precision: {}", recipe_.precision == Precision::fp16 ? "bf16" : "fp32");
    fail(ExitCode::no_progress,
         "step {}: loss {} and gradient norm {} are not finite; no update was made and nothing was saved.\n"
         "The same step would fail again: lower optimizer.lr{} check the data around sample {}{}.\n{}",
         step_ + 1, r.loss, r.grad_norm, wider.empty() ? ", or" : ",", position_.cursor, wider,
         state_->way_back());
  }

  /// The promise that planned bytes are real bytes, checked at run time.
  void check_high_water() {
    if (checked_ || step_ < first_step_ + 1) return;
    checked_ = true;
    LT_CHECK(arena_->peak().arena_bytes <= plan_.arena.arena_bytes, "the step used {} bytes of a planned {}",
             arena_->peak().arena_bytes, plan_.arena.arena_bytes);
    LT_CHECK(!host_ || host_->peak().arena_bytes == plan_.staging_bytes,
             "staging used {} bytes of a planned {}", host_->peak().arena_bytes, plan_.staging_bytes);
    LT_CHECK(program_->offloaded().all() <= plan_.offloaded.all(), "{} bytes were offloaded of a planned {}",
             program_->offloaded().all(), plan_.offloaded.all());
  }

  void report(const StepResult& r, int64_t batch, double lr, double seconds, double data_seconds,
              const std::vector<std::pair<std::string, double>>& exposed) {
    StepMetrics m;
    m.step = step_;
    m.train_steps = recipe_.train.train_steps;
    m.end_step = end_step_;
    m.consumed_samples = position_.samples;
    m.consumed_tokens = position_.tokens;
    m.lm_loss = r.loss;
    if (recipe_.model.num_nextn_predict_layers > 0) m.mtp_loss = r.mtp_loss;
    if (recipe_.train.z_loss_coeff > 0) m.z_loss = r.z_loss;
    m.grad_norm = r.grad_norm;
    m.lr = lr;
    m.loss_scale = program_->loss_scaler() ? r.loss_scale : 0;
    m.skipped_steps = skipped_;
    m.step_time_ms = seconds * 1e3;
    m.data_time_ms = data_seconds * 1e3;
    const auto waited_for = [&](const std::string& axis) {
      for (const auto& [name, s] : exposed)
        if (name == axis) return s * 1e3;
      return 0.0;
    };
    for (const std::string& axis : comm_axes_) m.exposed_comm_ms.emplace_back(axis, waited_for(axis));
    const Offload& o = recipe_.offload;
    if (o.optimizer.on() || o.params.on() || o.activations.on()) m.exposed_offload_ms = waited_for("");
    const double part = static_cast<double>(batch) / static_cast<double>(recipe_.train.global_batch_size);
    const double flops = job_flops_ * part;
    m.tokens_per_sec = static_cast<double>(batch * recipe_.data.seq_length) / seconds;
    m.tokens_per_sec_per_gpu = m.tokens_per_sec / job_.info().world_size;
    m.tflops_per_gpu = flops / seconds / 1e12 / job_.info().world_size;
    m.mfu = mfu(flops / seconds);
    m.skipped = r.skipped || r.overflow;
    m.mem_peak_gib = static_cast<double>(arena_->peak().arena_bytes) / kGiB;
    m.mem_plan_gib = static_cast<double>(plan_.arena.arena_bytes) / kGiB;
    m.seconds_left = (steady_seconds() - started_) / static_cast<double>(step_ - first_step_) *
                     static_cast<double>(end_step_ - step_);
    add_expert_metrics(m, r.experts);
    metrics_->step(m);
    progress_->step(m);
    say(metrics_->notes());
    say(starvation_.look(step_, r.experts));
    if (const auto budget = recipe_.model.moe.row_budget) say(beyond_budget_.look(step_, r.experts, *budget));
  }

  /// False when all ranks agreed to stop in it.
  bool evaluate() {
    job_.section("eval", step_);
    const auto results = evaluator_->evaluate(*program_, [this] { return asked_to_stop(); });
    if (!results) return false;
    double sum = 0;
    for (const SetResult& set : *results) sum += set.result.loss;
    state_->note_evaluation(step_, sum / static_cast<double>(results->size()));
    if (!lead_) return true;
    for (const SetResult& set : *results) {
      metrics_->eval(step_, set.name, set.result.loss, set.result.bytes > 0 ? set.result.bits_per_byte() : 0);
      progress_->line(eval_line(step_, set));
    }
    return true;
  }

  void save() {
    job_.section("save", step_);
    state_->save(step_, position_);
    saved_step_ = step_;
    say(state_->poll());
  }

  void say(const std::vector<std::string>& lines) {
    if (lead_)
      for (const std::string& line : lines) progress_->line(line);
  }

  /// logs/usage-00000.json of each rank: what was used, to hold against plan.json (scripts/compare-plan.sh).
  void write_usage() const {
    const int64_t resident = peak_resident_bytes(), steps = step_ - first_step_;
    int64_t train_wire = 0;
    for (const auto& [axis, bytes] : train_wire_) train_wire += bytes;
    const nlohmann::ordered_json usage{{"rank", job_.info().rank},
                                       {"steps", steps},
                                       {"arena_bytes", arena_->peak().arena_bytes},
                                       {"train_wire_bytes", train_wire},
                                       {"train_wire_bytes_by_axis", train_wire_},
                                       {"train_wire_bytes_by_group", train_wire_by_group_},
                                       {"all_wire_bytes", groups_->groups().wire_bytes()},
                                       {"device_bytes", card_.total_bytes - free_device_bytes(device_)},
                                       {"peak_rss_bytes", resident},
                                       {"plan_arena_bytes", plan_.arena.arena_bytes},
                                       {"plan_total_bytes", plan_.total_bytes},
                                       {"plan_host_bytes", plan_.host_bytes}};
    try {
      make_folders(recipe_.output_dir + "/logs");
      write_file(fmt::format("{}/logs/usage-{:05d}.json", recipe_.output_dir, job_.info().rank),
                 usage.dump() + "\n");
    } catch (const Error& e) {  // a full disk here does not undo a training that is done and saved
      print_lines(fmt::format("warning: {}", e.what()));
    }
    if (!lead_ || steps == 0) return;
    progress_->line(
        fmt::format("rank 0 used {:.1f} MiB of the host's memory at its peak ({:.1f} planned) and sent "
                    "{:.1f} MiB in {} training step{} ({:.1f} planned){}{}",
                    resident / kMiB, plan_.host_bytes / kMiB, train_wire / kMiB, steps, steps == 1 ? "" : "s",
                    planned_wire_ / kMiB, sent_between_experts(steps),
                    job_.transports().empty() ? "" : " through " + job_.transports()));
  }

  /// Of the bytes sent those that depend on where tokens went.
  std::string sent_between_experts(int64_t steps) const {
    const auto sent = train_wire_by_group_.find("ep");
    if (recipe_.parallel.expert == 1 || sent == train_wire_by_group_.end()) return "";
    int64_t planned = 0;
    for (const CollectivePlan& c : plan_.collectives) planned += c.group == "ep" ? c.wire_bytes : 0;
    const bool alike = planned_wire_ == steps * plan_.train_wire_bytes;  // StepKinds
    return fmt::format(
        ", {:.1f} of it between experts{}", sent->second / kMiB,
        alike ? fmt::format(" ({:.1f} planned, for even routing)", steps * planned / kMiB) : "");
  }

  void finish(ExitCode code) {
    job_.section("finish", step_);
    say(state_->finish());
    synchronize();
    write_usage();
    if (!lead_) return;
    say(metrics_->finish());
    const StopRequest stop = job_.stop_requested();
    const std::string reason = stop            ? stop.reason
                               : out_of_time() ? "train.exit_duration_in_mins"
                                               : "by another rank";
    progress_->line(
        code == ExitCode::preempted && !saves_at_all(recipe_)
            ? fmt::format("stopped at step {} as asked ({}); nothing was saved: checkpoint.save_interval is "
                          "0 and checkpoint.save_at_end is false",
                          step_, reason)
        : code == ExitCode::preempted
            ? fmt::format("stopped at step {} as asked ({}); start again to go on", step_, reason)
        : step_ == first_step_
            ? fmt::format("nothing left to do: step {} of {} is done; {} goes on from here", step_,
                          recipe_.train.train_steps,
                          recipe_.train.stop_step ? "a larger train.stop_step, or none,"
                                                  : "a larger train.train_steps")
        : step_ < recipe_.train.train_steps
            ? fmt::format(
                  "ended after step {} of {} as {} says, {} steps in {}; start again without it to go on",
                  step_, recipe_.train.train_steps, options_.steps > 0 ? "--steps" : "train.stop_step",
                  step_ - first_step_, format_duration(steady_seconds() - started_))
            : fmt::format("done: {} steps in {}", step_ - first_step_,
                          format_duration(steady_seconds() - started_)));
  }

  const Recipe& recipe_;
  Job& job_;
  TrainerOptions options_;
  bool lead_;
  Mesh mesh_;
  MachineProfile profile_;
  PipelineLayout layout_;
  RankPlan plan_;
  double job_flops_ = 0;  // model FLOPs of a step, of all ranks
  PeakShare peak_;        // of all ranks
  std::unique_ptr<Communicator> control_group_;
  DeviceKind device_ = DeviceKind::cpu;
  DeviceInfo card_;
  std::string place_;  // of rank 0's
  std::unique_ptr<Arena> arena_, host_;
  std::unique_ptr<GroupSet> groups_;  // its streams end before the arena goes
  std::unique_ptr<Stream> compute_, control_;
  std::optional<OffloadMemories> offload_memory_;  // its streams end before the arena goes
  std::unique_ptr<TrainProgram> program_;
  std::unique_ptr<TrainingState> state_;
  std::unique_ptr<StepProfile> step_profile_;
  std::unique_ptr<data::BatchLoader> loader_;
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<Progress> progress_;
  StarvationWatch starvation_;
  RowBudgetWatch beyond_budget_;
  std::vector<HostBatch> batches_;
  int64_t step_ = 0, first_step_ = 0, end_step_ = 0, saved_step_ = 0;
  DataPosition position_;
  std::map<std::string, int64_t> train_wire_, train_wire_by_group_;  // bytes sent in training steps
  std::set<std::string> comm_axes_;  // comm_axis of the groups that this rank is in with others
  StepKinds kinds_;
  int64_t planned_wire_ = 0;  // bytes of the training steps so far
  double started_ = 0;
  bool checked_ = false;
  int64_t earlier_updates_ = 0;  // of the optimizer's states, before step 0
  int64_t skipped_ = 0, skipped_in_a_row_ = 0, overflows_in_a_row_ = 0;
};

}  // namespace

ExitCode train(const Recipe& recipe, Job& job, const TrainerOptions& options) {
  Trainer trainer(recipe, job, options);
  try {
    return trainer.run();
  } catch (const std::exception& e) {
    job.abandon(e);  // before the trainer's streams wait for what is enqueued on them
    throw;
  }
}

}  // namespace ltrain
