#include "runtime/train/trainer.h"

#include <omp.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <set>

#include "base/bytes_text.h"
#include "base/fault_point.h"
#include "base/limits.h"
#include "base/log.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/out_of_memory.h"
#include "parallel/comm/host_collectives.h"
#include "parallel/mesh/mesh.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/training_state.h"
#include "runtime/checkpoint/upcycle.h"
#include "runtime/distillation/top_logits.h"
#include "runtime/eval/routing_probe.h"
#include "runtime/files/write_file.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/plan/offload_choice.h"
#include "runtime/plan/plan_print.h"
#include "runtime/program/attention_report.h"
#include "runtime/program/experts_report.h"
#include "runtime/program/lr_schedule.h"
#include "runtime/program/take_device.h"
#include "runtime/replicas/copy_state.h"
#include "runtime/routing/step_routing.h"
#include "runtime/telemetry/exposed.h"
#include "runtime/telemetry/gpu_watch.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/train/check_ranks.h"
#include "runtime/train/end_text.h"
#include "runtime/train/evaluator.h"
#include "runtime/train/model_flops.h"
#include "runtime/train/not_finite.h"
#include "runtime/train/pair_references.h"
#include "runtime/train/rank_groups.h"
#include "runtime/train/resource_usage.h"
#include "runtime/train/run_reports.h"
#include "runtime/train/skipped_steps.h"
#include "runtime/train/stage_changes.h"
#include "runtime/train/start_state.h"
#include "runtime/train/step_metrics.h"
#include "runtime/train/step_profile.h"
#include "runtime/train/stragglers.h"
#include "runtime/train/training_data.h"

namespace ltrain {
namespace {

/// Training run of one rank.
class Trainer {
 public:
  Trainer(const Recipe& recipe, Job& job, const TrainerOptions& options)
      : recipe_(recipe), job_(job), options_(options), lead_(job.info().rank == 0), skips_(recipe) {
    mesh_ = mesh_of(recipe, job.info().rank);
  }

  ExitCode run() {
    set_up();
    ExitCode code = ExitCode::done;
    while (step_ < end_step_) {
      const int64_t before = step_;
      const bool stop = train_step();
      if (news_) take_new_stages();
      const bool last = step_ == end_step_;
      const bool evaluates = step_ > before && evaluator_->due(step_, last);
      if (step_ > before && !stop && probe_->due(step_)) reports_.routing(step_, probe_->run());  // for saves
      const int64_t every = recipe_.checkpoint.save_interval;
      // The sender of a stop request waits only seconds; a probe or an evaluation may take minutes.
      if ((evaluates && !stop && !evaluate()) || stop) {
        if (evaluates) say({fmt::format("no evaluation at step {}: the run was asked to stop", step_)});
        if (saved_step_ != step_ && saves_at_all(recipe_)) save();
        code = last ? ExitCode::done : ExitCode::preempted;
        break;
      }
      if ((every > 0 && step_ % every == 0) || (last && recipe_.checkpoint.save_at_end)) save();
    }
    finish(code);
    if (code != ExitCode::done && options_.work_error)
      throw_work_error(options_.work_error(), *control_group_, *control_);
    return code;
  }

  /// Text of a failed request to memory: what the rank holds, and what would help.
  std::string text_of(const OutOfMemory& e) const {
    return fmt::format("rank {} on host {}: {}", job_.info().rank, job_.info().host,
                       out_of_memory_text(e, recipe_, profile_, plan_, arena_ != nullptr));
  }

 private:
  void set_up() {
    job_.section("setup");
    agree_on_job();
    usage_.reached("device", device_);
    const Plan totals = plan_step();
    job_.keep_flight_in(recipe_.output_dir + "/flight");  // rank 0 has the folder's lock: all ranks have met
    usage_.reached("plan", device_);
    make_program();
    usage_.reached("program", device_);
    const std::vector<std::string> notes = restore_or_begin();
    usage_.reached("state", device_);
    open_data();
    join_replicas();
    usage_.reached("data", device_);
    if (lead_) open_reports(totals, notes);
    gpu_.begin_run();
    started_ = steady_seconds(), first_step_ = step_, first_tokens_ = position_.tokens;
  }

  /// Takes the rank's device and threads. All ranks must agree on what follows from their machines.
  void agree_on_job() {
    omp_set_num_threads(threads_per_rank(recipe_));
    device_ = device_of(recipe_);
    profile_ = default_profile(device_);
    control_group_ = job_.new_control_group("checkpoint", kAllAxes, mesh_.all_ranks());
    if (mesh_.sites > 1) site_group_ = job_.new_control_group("site", kAllAxes, mesh_.group(kAllAxes));
    control_ = make_worker_stream("checkpoint");
    take_device();
    check_nodes(recipe_.parallel, *control_group_, *control_);
    agree_on_pipeline();
  }

  /// Runs the same pass as `ltrain plan`. It checks the placements of the whole step and sizes the arena.
  Plan plan_step() {
    Plan totals = make_plan(recipe_, profile_, {job_.info().rank}, &layout_);
    plan_ = totals.ranks.at(0);
    kinds_ = totals.kinds;
    flops_.begin(recipe_, profile_, totals, job_.info().world_size, lead_,
                 [this](double value) { return sum_over_ranks(value); });
    if (!options_.force) check_memory(totals);
    check_address_space(plan_.host_bytes, threads_per_rank(recipe_));
    if (lead_) {
      std::error_code error;
      std::filesystem::create_directories(recipe_.output_dir, error);
      if (error) fail(ExitCode::storage, "output_dir {}: {}", recipe_.output_dir, error.message());
      replace_file(recipe_.output_dir + "/recipe.yaml", dump_yaml(recipe_));
      replace_file(recipe_.output_dir + "/plan.json", plan_json(totals));
    }
    return totals;
  }

  /// Makes groups, streams, memory, the program and its state in checkpoints.
  void make_program() {
    const ProgramOptions options = program_options(recipe_, layout_);
    groups_ = make_rank_groups(mesh_, job_, device_, group_options(options));
    usage_.reached("groups", device_);
    for (const Communicator* c : groups_->groups().all())
      if (c->size() > 1) comm_axes_.insert(comm_axis(c->axes()));
    compute_ = make_compute_stream(device_, "compute");
    if (device_ != DeviceKind::cpu) {
      try_attention_kernels(recipe_, card_.capability, *compute_);
      kernel_notes_ = {"", try_experts_kernels(recipe_, card_.capability, *compute_)};
    }
    // Each kind of memory is one block of exactly the planned size.
    arena_ = std::make_unique<Arena>(device_, plan_.arena.arena_bytes);
    if (device_ != DeviceKind::cpu) host_ = Arena::staging(device_, plan_.staging_bytes);
    offload_memory_.emplace(options, device_, offload_folders(recipe_), plan_.offloaded.activations);
    program_ = std::make_unique<TrainProgram>(options, Device{.compute = *compute_,
                                                              .memory = *arena_,
                                                              .groups = groups_->groups(),
                                                              .host = host_.get(),
                                                              .offload = offload_memory_->places()});
    routing_.emplace(*program_, mesh_, routing_folders(recipe_));
    state_ = std::make_unique<TrainingState>(recipe_, program_->parameters(), *control_group_, *control_,
                                             job_.info().rank);
  }

  /// Loads a checkpoint or initializes weights, and opens the folder of new checkpoints. Returns notes.
  std::vector<std::string> restore_or_begin() {
    const TrainingState::Resumed resumed =
        load_start(recipe_, *program_, *state_, *control_group_, *control_);
    step_ = saved_step_ = resumed.step;
    const int64_t end =
        end_of_start(recipe_, step_, options_.steps, options_.restart ? options_.restart->end_step : 0);
    end_step_ = static_cast<int64_t>(sum_over_ranks(lead_ ? static_cast<double>(end) : 0));
    check_end_step(recipe_, step_, end_step_);
    if (lead_) routing_->check_steps(step_, end_step_);
    if (lead_) job_.tell(kFirstStep, step_), job_.tell(kEndStep, end_step_);
    position_ = resumed.position;
    skips_.restore(resumed.skipped_steps);
    earlier_updates_ = resumed.earlier_updates;
    if (LossScaler* scaler = program_->loss_scaler(); scaler && resumed.loss_scale)
      scaler->restore(*resumed.loss_scale);
    std::vector<std::string> notes = resumed.notes;
    synchronize();
    if (saves_at_all(recipe_))
      for (const std::string& note : state_->open_writer(step_, end_step_, host_.get()))
        notes.push_back("checkpoint: " + note);
    return notes;
  }

  void open_data() {
    step_profile_ =
        std::make_unique<StepProfile>(recipe_, profile_, job_.info().rank, job_.info().world_size);
    data::LoaderOptions data = training_options(recipe_, mesh_);
    evaluator_ = std::make_unique<Evaluator>(recipe_, mesh_);
    probe_.emplace(recipe_, mesh_, *program_, *control_group_, *control_);
    if (data.pairs) {
      const ReferencedRun run{.recipe = recipe_,
                              .mesh = mesh_,
                              .program = *program_,
                              .control = *control_group_,
                              .stream = *control_,
                              .step = step_};
      data.references = reference_sums(run, data, 0);
      evaluator_->find_references(run);
    }
    data.logits = open_top_logits(recipe_, data, step_, lead_);
    data_.emplace(recipe_, mesh_, job_, data, step_, position_.cursor);
    if (options_.with_stages)
      changes_.emplace(recipe_.output_dir, options_.with_stages,
                       job_.new_tree_group("data.stages", kAllAxes, mesh_.all_ranks()));
    stragglers_.emplace(job_.new_tree_group("stragglers", kAllAxes, mesh_.group(kAllAxes)), job_.info().host,
                        sum_over_ranks(lead_ ? straggler_steps() : 0),
                        device_ == DeviceKind::cpu ? nullptr : &gpu_);
    batches_.resize(micro_batches_of_site(recipe_, mesh_.site()));
    // Reports of kernels run them, on every rank.
    if (device_ != DeviceKind::cpu)
      kernel_notes_ = {attention_report(recipe_, card_.capability, *compute_),
                       experts_report(recipe_, card_.capability, kernel_notes_.experts)};
  }

  /// With `replicas`: meets the others, which may be before or behind.
  void join_replicas() {
    const std::optional<QuorumAddress> address = recipe_.replicas.on() ? quorum_address() : std::nullopt;
    if (!address) return;
    replicas_ = std::make_unique<ReplicaGroup>(recipe_, *address, job_.info().rank, *control_group_,
                                               *control_, [this] { return bool(job_.stop_requested()); });
    program_->sum_over(replicas_.get());
    meet_replicas();
    if (replicas_->others_are_done()) end_step_ = step_;
  }

  /// Takes part in the next step of all replicas, and copies the state of another one if that is newer.
  void meet_replicas() {
    TrainerPosition at{.data = position_, .earlier_updates = earlier_updates_};
    const int64_t before = step_;
    step_ = replicas_->begin_step(step_, [&] { copy_state(*replicas_, program_->parameters(), at); });
    if (!replicas_->receives() || step_ == before) return;
    position_ = at.data, earlier_updates_ = at.earlier_updates;
    first_step_ = saved_step_ = step_, first_tokens_ = position_.tokens;
    if (lead_) job_.tell(kFirstStep, step_);
    data_->seek(position_.cursor);
  }

  /// Opens the reports of rank 0, and prints what the run begins with. `notes`: of the checkpoint
  /// and the weights.
  void open_reports(const Plan& totals, const std::vector<std::string>& notes) {
    reports_.open(recipe_, step_, options_.restart);
    for (const std::string& note : recipe_.notes) say({"note: " + note});
    if (device_ != DeviceKind::cpu && recipe_.debug.shared_gpu)
      say({"debug.shared_gpu: ranks share GPUs over sockets; timings and tokens/s mean nothing"});
    if (device_ == DeviceKind::cpu) say(ineffective_on_cpu(recipe_));
    if (device_ != DeviceKind::cpu) say({"attention: " + kernel_notes_.attention});
    if (!kernel_notes_.experts.empty()) say({"experts: " + kernel_notes_.experts});
    say(offload_memory_->notes());
    say({routing_text(recipe_), probe_->text()});
    if (totals.update) say({update_text(*totals.update)});
    say(notes);
    say({begin_text(
        recipe_, totals.parameters, job_.info().world_size,
        device_ == DeviceKind::cpu ? threads_text(threads_per_rank(recipe_)) : "one " + card_.name + place_,
        batches_.size())});
    if (step_ < end_step_)
      say({fmt::format(
          "memory a rank: arena {:.1f} MiB, total {:.1f} MiB planned; ready in {:.2f} s; steps {} to {}",
          plan_.arena.arena_bytes / kMiB, plan_.total_bytes / kMiB, usage_.seconds(), step_ + 1, end_step_)});
  }

  void synchronize() {
    compute_->synchronize();
    groups_->synchronize();
    if (offload_memory_) offload_memory_->synchronize();
  }

  /// Takes one GPU per rank and checks that all ranks have the same kind.
  void take_device() {
    const RankInfo& me = job_.info();
    const TakenDevice taken = ltrain::take_device(device_, me.local_rank);
    if (lead_ && !taken.text.empty()) place_ = " (rank 0: " + taken.text + ")";
    card_ = device_info(device_);
    check_devices(device_, card_, recipe_.debug.shared_gpu, *control_group_, *control_);
    gpu_.start(taken.bus_id, fmt::format("rank {} on host {}", me.rank, me.host));
  }

  double sum_over_ranks(double value) { return sum_over(*control_group_, *control_, value); }

  /// Rank 0 chooses the pipeline schedule and automatic policies, which follow from its machine profile.
  void agree_on_pipeline() {
    if (!layout_is_planned(recipe_) && !chooses_offload(recipe_)) return;
    const std::string text = lead_ ? pack(choose_layout(recipe_, profile_)) : "";
    layout_ = unpack_pipeline_layout(broadcast_text(*control_group_, *control_, text));
    if (layout_.offload) set_offload(recipe_, *layout_.offload);
  }

  /// Runs one step, unless a rank was asked to stop before its data are there. Returns true if one was.
  bool train_step() {
    job_.section("step", step_ + 1);
    LT_FAULT_POINT("train.step");
    poll_saves();
    if (replicas_) meet_replicas();
    const double begin = steady_seconds();
    const DataWaits waits_before = data_->waits();
    const int64_t batch = global_batch_after(recipe_, position_.samples);
    if (!data_->wait(
            position_.cursor, position_.cursor + batch, [this] { return asked_to_stop(); },
            [this](std::string line) { say({line}); }))
      return true;
    step_profile_->begin(step_ + 1);
    const double reads = steady_seconds();
    const Stream::Waits waited_before = compute_->waited();
    const int64_t micros =
        batch * micro_batches_of_site(recipe_, mesh_.site()) / recipe_.train.global_batch_size;
    data_->read(batches_, micros, replicas_ ? replicas_->place() : 0, replicas_ ? replicas_->count() : 1);
    step_profile_->host("data", reads, steady_seconds());
    if (LT_FAULT_POINT("train.loss") == FaultAction::nan) poison();
    const int64_t update = step_ + 1 - skips_.count();  // schedules count updates, as in Megatron-LM
    const OptimizerStep a = optimizer_step(recipe_, update, earlier_updates_);
    usage_.begin_step(groups_->groups());
    program_->set_matmul_precision(matmul_precision_at(recipe_, step_ + 1));
    routing_->before_step(step_ + 1, position_.cursor, batch, batches_);
    const StepResult r = run_step(a);
    if (!r.applies) {
      data_->seek(position_.cursor);
      return train_step();
    }
    routing_->after_step(step_ + 1, batches_);
    news_ = r.news;
    const size_t kind = kinds_.kind_of(a.step);
    if (step_profile_->running()) {
      synchronize();
      say(step_profile_->end(batch == recipe_.train.global_batch_size && kind == 0));
    }
    usage_.end_step(groups_->groups(), plan_.wire_bytes(kind));
    check_loss(r);
    const LossScaler* scaler = program_->loss_scaler();
    say({skips_.note(step_ + 1, r, scaler ? scaler->scale() : 1, last_checkpoint())});
    ++step_;
    position_.cursor += batch;
    position_.samples += batch;
    position_.tokens += batch * recipe_.data.seq_length;
    data_->trained(step_, batches_, position_.cursor);
    say(data_->notes());
    if (!r.overflow) state_->note_health(r.loss, r.grad_norm);
    state_->note_skips(skips_.count(), scaler ? std::optional(scaler->state()) : std::nullopt);
    check_high_water();
    const double seconds = steady_seconds() - begin;
    const DataWaits waits = data_->waits() - waits_before;
    const auto exposed = exposed_by_axis(compute_->waited(), waited_before);
    stragglers_->step(seconds, waits.loader + waits.files, total_of(exposed));
    if (lead_) report(r, batch, a.lr, seconds, waits, exposed);
    report_gpu();
    return r.stop_requested;
  }

  /// Ends a run whose loss is not finite or too high.
  void check_loss(const StepResult& r) {
    if (!r.finite) not_finite(r);
    if (r.diverged)
      fail(ExitCode::no_progress, "{}\n{}: lower optimizer.lr, or raise train.stop_loss.",
           diverged_text(recipe_, step_ + 1, r.loss), last_checkpoint());
    if (step_ == 0) check_first_loss(recipe_, r);
  }

  /// Sites agree on a stop and on news when they synchronize.
  StepResult run_step(const OptimizerStep& a) {
    if (replicas_ && step_ + 1 == end_step_) replicas_->end_after_step();
    const bool agrees = !recipe_.diloco.on() || recipe_.diloco.agrees_after(step_ + 1);
    return program_->train_step(
        batches_, a, [&] { return agrees && asked_to_stop(); },
        [&] { return agrees && lead_ && changes_ && changes_->pending(); });
  }

  /// Takes data.stages that wait for the run, on all ranks or on none.
  void take_new_stages() {
    std::string reason;
    auto change = changes_->take(recipe_, state_->identity(), position_.cursor, reason);
    if (!change) return say({"warning: data.stages stay as they are: " + reason});
    recipe_.data.stages = std::move(change->recipe.data.stages);
    state_->change_identity(std::move(change->identity));
    data_->reopen(training_options(recipe_, mesh_), position_.cursor);
    if (lead_) replace_file(recipe_.output_dir + "/recipe.yaml", dump_yaml(recipe_));
    say({"data.stages have changed: " + stages_in_words(change->stages)});
  }

  bool asked_to_stop() const { return job_.stop_requested() || out_of_time() || work_failed(); }
  bool work_failed() const { return options_.work_error && options_.work_error(); }

  /// Rank 0's clock decides for all ranks.
  bool out_of_time() const {
    return lead_ && recipe_.train.exit_duration_in_mins &&
           steady_seconds() - started_ + (options_.restart ? options_.restart->earlier_seconds : 0) >
               *recipe_.train.exit_duration_in_mins * 60;
  }

  /// Fault injection: makes the loss and gradients of this step NaN.
  void poison() {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const Tensor& w : program_->parameters().held_values()) fill_value(*compute_, w.flat(0, {1}), nan);
  }

  std::string last_checkpoint() const {
    return saved_step_ > 0 ? fmt::format("The last checkpoint is of step {}", saved_step_)
                           : "There is no checkpoint of this run yet";
  }

  [[noreturn]] void not_finite(const StepResult& r) {
    // The ranks of other sites are in a step of their own.
    Communicator& group = site_group_ ? *site_group_ : *control_group_;
    const std::string back = state_->way_back(group);  // waits for a save, which uses the same stream
    const FailedStep failed{recipe_, mesh_,     *program_,        *compute_, batches_,
                            group,   *control_, job_.info().host, step_ + 1};
    fail(ExitCode::no_progress, "{}\n{}", not_finite_text(failed, r, position_.cursor), back);
  }

  void check_high_water() {
    if (checked_ || step_ < first_step_ + 1) return;
    checked_ = true;
    check_used_bytes(plan_, *arena_, host_.get(), program_->offloaded());
  }

  void report(const StepResult& r, int64_t batch, double lr, double seconds, const DataWaits& waits,
              const std::vector<std::pair<std::string, double>>& exposed) {
    const double part = static_cast<double>(batch) / static_cast<double>(recipe_.train.global_batch_size);
    const double flops = flops_.per_step() * part;
    const int replicas = replicas_ ? replicas_->count() : 1;
    StepMetrics m = step_metrics({.recipe = recipe_,
                                  .result = r,
                                  .position = position_,
                                  .step = step_,
                                  .end_step = end_step_,
                                  .steps = step_ - first_step_,
                                  .elapsed = steady_seconds() - started_,
                                  .samples = batch,
                                  .seconds = seconds,
                                  .waits = waits,
                                  .comm_axes = comm_axes_,
                                  .exposed = exposed,
                                  .lr = lr,
                                  .loss_scale = program_->loss_scaler() ? r.loss_scale : 0,
                                  .skipped_steps = skips_.count(),
                                  .world_size = job_.info().world_size * replicas,
                                  .flops = flops,
                                  .arena_peak = arena_->peak().arena_bytes,
                                  .arena_planned = plan_.arena.arena_bytes});
    std::string note;
    m.mfu = flops_.mfu(step_, flops / seconds / replicas, note);
    say({note});
    m.gpu = gpu_.newest();
    if (replicas_) m.replicas = replicas;
    reports_.step(m, recipe_, r.experts, job_.info(), *stragglers_);
  }

  /// Tells what the watch of this rank's GPU has found. One rank names the numbers that NVML refuses.
  void report_gpu() {
    const std::vector<std::string> notes = gpu_.notes(), refusals = gpu_.refusals();
    say(notes), say(refusals);
    if (!lead_)
      for (const std::string& note : notes) log_lines(LogLevel::warning, note);
  }

  /// Returns false if all ranks agreed to stop during the evaluation.
  bool evaluate() {
    job_.section("eval", step_);
    const auto results = evaluator_->evaluate(*program_, [this] { return asked_to_stop(); });
    if (!results) return false;
    double sum = 0;
    for (const SetResult& set : *results) sum += set.result.loss;
    state_->note_evaluation(step_, sum / static_cast<double>(results->size()));
    reports_.evaluation(step_, recipe_, *results);
    return true;
  }

  /// One replica saves for all.
  void save() {
    if (replicas_ && !replicas_->first()) {
      saved_step_ = step_;
      return;
    }
    job_.section("save", step_);
    state_->save(step_, position_);
    saved_step_ = step_;
    poll_saves();
  }

  /// Reports saves that have ended, to the user and to the launcher; `all`: waits for the one in flight.
  void poll_saves(bool all = false) {
    const int64_t before = state_->last_committed();
    say(all ? state_->finish(bool(job_.stop_requested())) : state_->poll());
    if (lead_ && state_->last_committed() != before) job_.tell(kSavedStep, state_->last_committed());
  }

  void say(const std::vector<std::string>& lines) { reports_.say(lines); }

  /// Writes what this rank has used. A full disk here does not fail a training that is finished and saved.
  void report_usage() {
    const int64_t steps = step_ - first_step_;
    const GpuReading gpu = gpu_.run();
    usage_.note_gpu(gpu, gpu_.readings(), gpu_.reading_seconds());
    try {
      usage_.write(recipe_.output_dir, job_.info().rank, steps, groups_->groups(), *arena_, card_, device_,
                   plan_);
    } catch (const Error& e) {
      log_lines(LogLevel::warning, fmt::format("warning: {}", e.what()));
    }
    if (steps > 0) say({usage_.text(steps, plan_, recipe_.parallel.expert > 1, job_.transports())});
    if (steps == 0 || device_ == DeviceKind::cpu || recipe_.debug.shared_gpu) return;
    const auto gpus = gather_readings(*control_group_, *control_, gpu);
    say({gpu_summary(gpus, static_cast<double>(position_.tokens - first_tokens_))});
  }

  void finish(ExitCode code) {
    job_.section("finish", step_);
    poll_saves(true), synchronize();
    report_usage();
    if (!lead_) return;
    const StopRequest stop = job_.stop_requested();
    const std::string reason = stop            ? stop.reason
                               : work_failed() ? "token files that cannot be made"
                               : out_of_time() ? "train.exit_duration_in_mins"
                                               : "by another rank";
    reports_.finish(end_text(
        recipe_, {code, step_, first_step_, options_.steps > 0, reason, steady_seconds() - started_}));
  }

  Recipe recipe_;  // data.stages may change during the run
  Job& job_;
  TrainerOptions options_;
  bool lead_;
  Mesh mesh_;
  MachineProfile profile_;
  PipelineLayout layout_;
  RankPlan plan_;
  ModelFlops flops_;
  std::unique_ptr<Communicator> control_group_;
  std::unique_ptr<Communicator> site_group_;  // with several sites
  DeviceKind device_ = DeviceKind::cpu;
  DeviceInfo card_;
  std::string place_;  // location of rank 0's device
  GpuWatch gpu_;
  struct {
    std::string attention, experts;  // the kernels in use, and why
  } kernel_notes_;
  std::unique_ptr<Arena> arena_, host_;
  std::unique_ptr<GroupSet> groups_;  // destroyed before the arena, so that its streams end first
  std::unique_ptr<Stream> compute_, control_;
  // destroyed before the arena, so that its streams end first
  std::optional<OffloadMemories> offload_memory_;
  std::unique_ptr<TrainProgram> program_;
  std::optional<StepRouting> routing_;
  std::unique_ptr<TrainingState> state_;
  std::unique_ptr<ReplicaGroup> replicas_;
  std::unique_ptr<StepProfile> step_profile_;
  std::optional<TrainingData> data_;
  std::optional<StageChanges> changes_;
  bool news_ = false;  // after the last step
  std::unique_ptr<Evaluator> evaluator_;
  std::optional<RoutingProbe> probe_;
  RunReports reports_;
  std::vector<HostBatch> batches_;
  int64_t step_ = 0, first_step_ = 0, end_step_ = 0, saved_step_ = 0;
  DataPosition position_;
  int64_t first_tokens_ = 0;         // consumed before this attempt
  std::set<std::string> comm_axes_;  // comm_axis of each group with more than one rank
  StepKinds kinds_;
  double started_ = 0;
  bool checked_ = false;
  int64_t earlier_updates_ = 0;  // updates in the optimizer state before step 0
  SkippedSteps skips_;
  ResourceUsage usage_;
  std::optional<StragglerWatch> stragglers_;
};

}  // namespace

ExitCode train(const Recipe& recipe, Job& job, const TrainerOptions& options) {
  Trainer trainer(recipe, job, options);
  try {
    return trainer.run();
  } catch (const OutOfMemory& e) {
    const Error told(e.code(), trainer.text_of(e));
    job.abandon(told);
    throw told;
  } catch (const std::exception& e) {
    job.abandon(e);  // abort before the trainer's streams wait for enqueued work
    throw;
  }
}

}  // namespace ltrain
