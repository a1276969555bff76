#include "runtime/checkpoint/training_state.h"

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>

#include "base/bytes_text.h"
#include "base/version.h"
#include "models/layers/fp8.h"
#include "models/moe/moe_layer.h"
#include "parallel/comm/host_collectives.h"
#include "parallel/comm/rank_texts.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/nf4_pieces.h"
#include "runtime/checkpoint/remote_fetch.h"
#include "runtime/checkpoint/resume_changes.h"
#include "runtime/checkpoint/save_command.h"
#include "runtime/checkpoint/store.h"
#include "runtime/checkpoint/tensor_reader.h"
#include "runtime/checkpoint/upcycle.h"
#include "runtime/program/train_program.h"

namespace ltrain {
namespace {

/// "optimizer/exp_avg/NAME"
std::string state_name(std::string_view state, const std::string& parameter) {
  return fmt::format("optimizer/{}/{}", state, parameter);
}

/// Name of a state of `site`: the first one has the plain name.
std::string site_state(std::string_view state, int64_t site) {
  return site == 0 ? std::string(state) : fmt::format("{}_site_{:05d}", state, site);
}

/// True for a state that all sites have alike.
bool same_in_sites(std::string_view state) { return state == kOuterMomentum || state == kOuterChange; }

/// True for states of other sites than the first, and of the outer optimizer.
bool of_diloco(const std::string& name) {
  return std::ranges::any_of(std::array{kOuterMomentum, kOuterChange, kLocalWeights},
                             [&](std::string_view s) { return name.starts_with(state_name(s, "")); }) ||
         (name.starts_with("optimizer/") && name.find("_site_") < name.find('/', 10));
}

/// Name of a state in a checkpoint of any number of sites, of which site `site` takes that of site modulo
/// their number.
std::string saved_state(const CheckpointReader& reader, std::string_view state, const std::string& parameter,
                        int64_t site) {
  int64_t sites = 1;
  while (sites <= site && reader.has(state_name(site_state(state, sites), parameter))) ++sites;
  return state_name(site_state(state, site % sites), parameter);
}

/// False for states that a run keeps and the checkpoint lacks.
struct FoundStates {
  bool average = true, momentum = true, change = true;
};

/// Reads the states of a piece of parameter `name`.
void read_states(CheckpointReader& reader, TensorReader& tensors, const OwnedPiece& piece,
                 const std::string& name, int site, FoundStates& found) {
  for (const NamedState& m : piece.moments) {
    const bool saved = reader.has(state_name(m.name, name)), same = same_in_sites(m.name);
    if (m.name == kAverage) found.average = saved;
    if (m.name == kOuterMomentum) found.momentum = saved;
    if (m.name == kOuterChange) found.change = saved;
    const bool weights = m.name == kLocalWeights || m.name == kDenseWeights;
    if (saved || !(same || m.name == kAverage || weights))
      tensors.read(saved_state(reader, m.name, name, same ? 0 : site), piece.slice, m.tensor);
    else if (weights)  // sites begin with the same weights, and masks with dense ones
      tensors.read(name, piece.slice, m.tensor);
  }
}

/// True for buffers that a run may begin with where the checkpoint has none, and may leave.
bool begins_anew(const std::string& name) { return name == kFp8History || name == kProbedChoices; }

bool of_shape(const CheckpointReader& reader, const RegisteredBuffer& k) {
  const auto at = reader.tensors().find(k.name);
  return at != reader.tensors().end() && at->second.shape == k.tensor.shape;
}

}  // namespace

/// Name of a rounding error. An error of sent values belongs to the rounding of rank `rank` only.
static std::string error_name(const RoundingError& e, const std::string& parameter, int rank) {
  return e.sent ? fmt::format("optimizer/sent_error_{:05d}/{}", rank, parameter)
                : "optimizer/sum_error/" + parameter;
}

static bool is_error(const std::string& name) {
  return name.starts_with("optimizer/sent_error_") || name.starts_with("optimizer/sum_error/");
}

std::string checkpoint_folder(const Recipe& recipe) { return recipe.output_dir + "/checkpoints"; }

ResumeOptions resume_options(const Recipe& recipe) {
  ResumeOptions o;
  o.folder = checkpoint_folder(recipe);
  o.resume = recipe.checkpoint.resume;
  o.model = model_settings(recipe.model);
  return o;
}

std::vector<StateSlice> state_slices(const ParameterStore& parameters) {
  std::vector<StateSlice> out;
  // Sites have the same weights, and states of their own.
  const int site = parameters.site();
  for (const OwnedPiece& piece : parameters.owned_pieces()) {
    if (site > 0 && !parameters.trains(piece.id)) continue;
    const std::string& name = parameters.spec(piece.id).name;
    const Slice& slice = piece.slice;
    if (piece.nf4.defined()) {
      out.push_back({name, DType::u8, slice.per(kNf4Pair), piece.nf4.codes.data, true});
      out.push_back({name + kNf4Absmax, DType::f32, slice.per(kNf4Block), piece.nf4.absmax.data, true});
      continue;
    }
    const Tensor& weights = piece.shared.defined() ? piece.shared : piece.master;
    if (site == 0) out.push_back({name, weights.dtype, slice, weights.data, !parameters.trains(piece.id)});
    for (const NamedState& m : piece.moments)
      if (site == 0 || !same_in_sites(m.name))
        out.push_back({state_name(site_state(m.name, site), name), m.tensor.dtype, slice, m.tensor.data});
  }
  for (const WholeState& w : parameters.whole_states(true))
    out.push_back({state_name(site_state(w.name, site), parameters.spec(w.id).name), w.tensor.dtype,
                   Slice::whole(w.tensor.shape), w.tensor.data});
  if (site > 0) return out;
  for (const RoundingError& e : parameters.rounding_errors(true))
    out.push_back(
        {error_name(e, parameters.spec(e.id).name, e.rank), e.tensor.dtype, e.slice, e.tensor.data});
  for (const RegisteredBuffer& k : parameters.kept(true))
    out.push_back({k.name, k.tensor.dtype, Slice::whole(k.tensor.shape), k.tensor.data});
  return out;
}

void check_optimizer(const CheckpointReader& reader, const ParameterStore& parameters,
                     const OptimizerSettings& optimizer) {
  const auto refuse = [&](const std::string& what) {
    fail(ExitCode::usage,
         "{}: {}: it was saved with another optimizer.kind, optimizer.groups or optimizer.frozen; make the "
         "recipe agree, or "
         "take its weights alone, by checkpoint.load.path, in another output_dir",
         reader.path(), what);
  };
  for (int id = 0; id < parameters.count(); ++id) {
    const std::string& name = parameters.spec(id).name;
    const ParameterRule rule = parameters.rule_with(id, optimizer);
    if (const auto at = reader.tensors().find(name); at != reader.tensors().end())
      if (const bool nf4 = is_nf4(at->second); nf4 != (parameters.spec(id).nf4 && !rule.trains()))
        fail(ExitCode::usage,
             "{}: {} is {} there, and the recipe has lora.base: {}; make it agree, or take its weights "
             "alone, by checkpoint.load.path, in another output_dir",
             reader.path(), name, nf4 ? "in NF4" : "not in NF4", nf4 ? "full" : "nf4");
    std::vector<std::string_view> states = optimizer_of(rule.rule).element_states(rule);
    for (std::string_view state : optimizer_of(rule.rule).tensor_states(rule)) states.push_back(state);
    for (std::string_view state : states)
      if (!reader.has(state_name(state, name)))
        refuse(fmt::format("has no {} of {}, which {} keeps{}", state, name, update_rule_name(optimizer.rule),
                           parameters.spec(id).router ? " (train.freeze_router: true does not)" : ""));
    for (std::string_view state : all_state_names())
      if (rule.trains() && reader.has(state_name(state, name)) &&
          std::find(states.begin(), states.end(), state) == states.end())
        refuse(fmt::format("has {} of {}, which this run does not keep", state, name));
  }
}

void load_parameters(PieceReader& reader, ParameterStore& parameters, bool average) {
  TensorReader tensors(reader, parameters.stream());
  for (int id = 0; id < parameters.count(); ++id) {
    const std::string& weight = parameters.spec(id).name;
    const std::string name = average ? state_name(kAverage, weight) : weight;
    if (!reader.has(name))
      fail(ExitCode::usage, "{}: has no {}{}", reader.path(), name,
           average ? "; averages of weights are kept by runs with train.ema_decay" : "");
    const bool nf4 = parameters.is_nf4(id);
    tensors.read_weights(name, parameters.spec(id).slice, nf4 ? Tensor() : parameters.value(id),
                         nf4 ? parameters.nf4(id) : Nf4Matrix(), parameters.precision().compute);
  }
  for (const RegisteredBuffer& k : parameters.kept(false))
    tensors.read(k.name, Slice::whole(k.tensor.shape), k.tensor);
  parameters.publish_loaded();
}

Tensor checkpoint_staging(Memory& host, int64_t bytes) {
  return host.allocate(MemoryKind::temporaries, "checkpoint staging", DType::u8, {bytes});
}

TrainingState::TrainingState(const Recipe& recipe, ParameterStore& parameters, Communicator& control,
                             Stream& control_stream, int rank)
    : recipe_(recipe), parameters_(parameters), control_(control), stream_(control_stream), rank_(rank) {
  if (rank == 0 && recipe.telemetry.on_save)
    command_.emplace("telemetry.on_save", [this](const std::stop_token& stop, const SavedCheckpoint& c) {
      return run_save_command(recipe_, stop, c);
    });
}

TrainingState::~TrainingState() = default;

std::unique_ptr<CheckpointReader> TrainingState::open_newest(std::vector<std::string>& notes) {
  const ResumeOptions options = resume_options(recipe_);
  const auto open = [&] { return CheckpointReader::open(options, control_, stream_, notes); };
  const auto& remote = recipe_.checkpoint.remote;
  if (!remote || options.resume != "auto") return open();
  std::unique_ptr<CheckpointReader> local;
  std::exception_ptr damaged;  // all local checkpoints are
  try {
    local = open();
  } catch (const Error& e) {
    if (e.code() != ExitCode::storage) throw;
    damaged = std::current_exception();
  }
  const int64_t have = local ? local->info().step : 0;
  if (fetch_newer(*remote, options.folder, have, control_, stream_, notes)) return open();
  if (damaged) std::rethrow_exception(damaged);
  return local;
}

TrainingState::Resumed TrainingState::resume() {
  std::vector<std::string> notes;
  const auto reader = open_newest(notes);
  Resumed r;
  if (reader) r = go_on(*reader);
  r.notes.insert(r.notes.begin(), notes.begin(), notes.end());
  return r;
}

TrainingState::Resumed TrainingState::go_on(CheckpointReader& reader) {
  check_optimizer(reader, parameters_, parameters_.optimizer());
  const CheckpointInfo& info = reader.info();
  const ResumeChanges changes = compare_resume(info, reader.path(), recipe_, identity());
  Resumed r = read(reader);
  r.step = last_committed_ = begun_ = info.step;
  begun_path_ = reader.path();
  damaged_ = reader.damaged();
  r.position = changes.position;
  r.notes.insert(r.notes.end(), changes.notes.begin(), changes.notes.end());
  r.skipped_steps = info.skipped_steps;
  r.earlier_updates = earlier_updates_ = info.earlier_updates;
  r.loss_scale = info.loss_scale;
  return r;
}

TrainingState::Resumed TrainingState::take_states(CheckpointReader& reader) {
  check_optimizer(reader, parameters_, parameters_.optimizer());
  check_states(reader.info(), reader.path(), recipe_);
  Resumed r = read(reader);
  r.earlier_updates = earlier_updates_ = reader.info().updates();
  return r;
}

/// Reads weights and optimizer state.
TrainingState::Resumed TrainingState::read(CheckpointReader& reader) {
  Resumed r;
  r.loaded = true;
  parameters_.clear();
  parameters_.prefetch_states();
  FoundStates found;
  TensorReader tensors(reader, parameters_.stream(), [this] { parameters_.release_offloaded(); });
  for (const OwnedPiece& piece : parameters_.stored_pieces()) {
    const std::string& name = parameters_.spec(piece.id).name;
    // Without masks the run goes on with the dense weights.
    const std::string dense = state_name(kDenseWeights, name);
    tensors.read_weights(!piece.shared.defined() && reader.has(dense) ? dense : name, piece.slice,
                         piece.shared.defined() ? piece.shared : piece.master, piece.nf4,
                         parameters_.precision().compute);
    read_states(reader, tensors, piece, name, parameters_.site(), found);
  }
  for (const WholeState& w : parameters_.whole_states(false))
    tensors.read(saved_state(reader, w.name, parameters_.spec(w.id).name, parameters_.site()),
                 Slice::whole(w.tensor.shape), w.tensor);
  for (const RegisteredBuffer& k : parameters_.kept(false)) {
    if (begins_anew(k.name) && !of_shape(reader, k)) {  // another type or length than in the checkpoint
      r.notes.push_back(
          k.name == kProbedChoices
              ? "note: the checkpoint has no choices of a routing probe of these sequences: the "
                "first one has none to compare with"
              : "note: the checkpoint has no largest magnitudes of fp8, or those of another "
                "fp8.amax_history_len or fp8.output_layer: they begin here");
      continue;
    }
    tensors.read(k.name, Slice::whole(k.tensor.shape), k.tensor);
  }
  const bool no_errors = resume_errors(reader, tensors);
  parameters_.offload_states(true);
  const std::string averages = state_name(kAverage, "");
  // Masked weights of a run that goes on without masks.
  const auto masked = [&](const std::string& name) { return reader.has(state_name(kDenseWeights, name)); };
  reader.finish(control_, stream_, [&](const std::string& name) {
    return !of_frozen_parameter(name) && !name.starts_with(averages) && !is_error(name) && !of_diloco(name) &&
           !begins_anew(name) && !masked(name);
  });
  const DilocoSettings& diloco = parameters_.optimizer().diloco;
  parameters_.publish_loaded(!diloco.streams());
  if (diloco.streams()) parameters_.resume_sites(reader.info().updates(), found.change);
  if (!found.average) {
    parameters_.start_average();
    r.notes.push_back("note: the checkpoint has no average of weights: it begins here, with the weights");
  }
  if (!found.momentum)
    r.notes.push_back("note: the checkpoint has no outer momentum (DiLoCo): it begins with zero");
  if (no_errors)
    r.notes.push_back(
        "note: the checkpoint has no rounding errors of as many ranks as sum here: they begin with zero");
  r.bytes_read = reader.bytes_read();
  return r;
}

/// Collective at its first call. Rank 0 reads the identity, so that all ranks compare and save the same.
const data::DataIdentity& TrainingState::identity() {
  if (identity_) return *identity_;
  std::string text;
  if (rank_ == 0) try {
      text = "+" + data_identity_to_json(data_identity(recipe_));
    } catch (const Error& e) {
      text = e.what();
    }
  text = broadcast_text(control_, stream_, text);
  if (!text.starts_with('+')) fail(ExitCode::data, "{}", text);
  identity_ = data_identity_from_json(text.substr(1), "the identity of data of rank 0");
  return *identity_;
}

/// Loads rounding errors saved by the same number of ranks. Returns whether any are missing; those start at
/// zero.
bool TrainingState::resume_errors(const CheckpointReader& reader, TensorReader& tensors) {
  bool none = false;
  for (const RoundingError& e : parameters_.rounding_errors(false)) {
    const std::string& name = parameters_.spec(e.id).name;
    RoundingError first = e;
    first.sent = true;
    const bool same =
        reader.has(error_name(first, name, e.ranks - 1)) && !reader.has(error_name(first, name, e.ranks));
    none = none || !same;
    if (same) tensors.read(error_name(e, name, e.rank), e.slice, e.tensor);
  }
  return none;
}

/// Returns whether `name` is a state that this run does not keep.
bool TrainingState::of_frozen_parameter(const std::string& name) const {
  constexpr std::string_view kStates = "optimizer/";
  if (!name.starts_with(kStates)) return false;
  const size_t parameter = name.find('/', kStates.size());  // optimizer/STATE/PARAMETER
  if (parameter != name.npos)
    for (const std::string& pattern : recipe_.optimizer.frozen)
      if (name_matches(pattern, std::string_view(name).substr(parameter + 1))) return true;
  if (!recipe_.train.freeze_router) return false;
  for (int64_t i = 0; i < recipe_.model.all_layers(); ++i)
    if (name.ends_with("/" + moe_prefix(recipe_.model, i) + ".gate.weight")) return true;
  return false;
}

std::vector<std::string> TrainingState::upcycle() {
  std::vector<std::string> notes;
  const auto reader = open_dense(recipe_, true, control_, stream_, notes);
  load_dense(*reader, recipe_.model, static_cast<uint64_t>(recipe_.seed), parameters_);
  reader->finish(control_, stream_, [](const std::string& name) { return !name.starts_with("optimizer/"); });
  return notes;
}

int64_t saves_to_come(const Recipe& recipe, int64_t step, int64_t end) {
  const int64_t every = recipe.checkpoint.save_interval;
  if (step >= end || !saves_at_all(recipe)) return 0;
  int64_t saves = every > 0 ? end / every - step / every : 0;
  if (recipe.checkpoint.save_at_end && (every <= 0 || end % every != 0)) ++saves;
  return std::max<int64_t>(saves, 1);  // a stop request saves too
}

bool saves_at_all(const Recipe& recipe) {
  return recipe.checkpoint.save_interval > 0 || recipe.checkpoint.save_at_end;
}

std::vector<std::string> TrainingState::open_writer(int64_t step, int64_t end, Memory* host) {
  identity();  // called now, before saves use the group
  CheckpointOptions o;
  o.planned_saves = saves_to_come(recipe_, step, end);
  o.folder = checkpoint_folder(recipe_);
  const auto& c = recipe_.checkpoint;
  o.keep = {.latest = c.keep_latest, .best = c.keep_best, .every = c.keep_every};
  o.keep.in_use = [this](int64_t saved) {
    return (command_ && command_->uses(saved)) || (copies_ && copies_->uses(saved));
  };
  o.async_save = recipe_.checkpoint.async_save;
  o.begun = begun_;
  o.last_step = end;
  o.damaged = damaged_;
  const std::vector<StateSlice> slices = state_slices(parameters_);
  o.device = &parameters_.stream();
  if (parameters_.offload_bytes() + parameters_.offloaded_bytes() > 0)
    o.touched = [this] { parameters_.release_offloaded(); };
  if (host) o.staging = checkpoint_staging(*host, CheckpointWriter::staging_bytes(slices)).data;
  writer_ = std::make_unique<CheckpointWriter>(o, slices, control_, stream_);
  std::vector<std::string> notes = writer_->notes();
  if (recipe_.checkpoint.remote) open_copies(o);
  if (copies_) notes.insert(notes.end(), copies_->notes().begin(), copies_->notes().end());
  return notes;
}

void TrainingState::open_copies(const CheckpointOptions& writer) {
  std::string text = ok_text("");
  if (rank_ == 0) try {
      const KeepRule& keep = writer.keep;
      copies_.emplace(
          RemoteCopies::Options{.url = *recipe_.checkpoint.remote,
                                .keep = {.latest = keep.latest, .best = keep.best, .every = keep.every},
                                .begun = writer.begun,
                                .last_step = writer.last_step});
    } catch (const Error& e) {
      text = error_text(e);
    }
  if (text = broadcast_text(control_, stream_, text); !is_ok(text)) throw_error(text);
}

void TrainingState::note_health(double loss, double grad_norm) {
  loss_ = loss;
  grad_norm_ = grad_norm;
}

void TrainingState::note_evaluation(int64_t step, double loss) {
  evaluated_step_ = step;
  eval_loss_ = loss;
}

void TrainingState::note_skips(int64_t skipped_steps, const std::optional<LossScaleState>& loss_scale) {
  skipped_steps_ = skipped_steps;
  loss_scale_ = loss_scale;
}

void TrainingState::save(int64_t step, const DataPosition& position) {
  CheckpointInfo info;
  info.step = step;
  info.data_cursor = position.cursor;
  info.consumed_samples = position.samples;
  info.consumed_tokens = position.tokens;
  info.data = identity();
  info.seed = recipe_.seed;
  info.loss = loss_;
  info.grad_norm = grad_norm_;
  if (evaluated_step_ == step) info.eval_loss = eval_loss_;
  info.skipped_steps = skipped_steps_;
  info.earlier_updates = earlier_updates_;
  info.loss_scale = loss_scale_;
  info.model = model_settings(recipe_.model);
  info.recipe = dump_yaml(recipe_);
  info.written_by = version();
  parameters_.prefetch_states();
  // The copy is complete when it returns.
  const std::string not_finite = writer_->save(info, state_slices(parameters_));
  parameters_.offload_states(false);
  if (not_finite.empty()) return;
  fail(ExitCode::no_progress,
       "step {}: the weights and states of the optimizer after its update: {}; nothing was saved. Loss and "
       "gradient norm of the step, which are from before the update, are {:.4g} and {:.4g}: the update "
       "itself is too large. Lower optimizer.lr.\n{}",
       step, not_finite, loss_, grad_norm_, way_back(control_));
}

std::string TrainingState::way_back(Communicator& group) {
  if (writer_) writer_->wait();
  std::string text;
  if (group.rank() == 0) try {
      std::vector<Candidate> healthy;  // newest first
      for (Candidate& c : list_checkpoints(checkpoint_folder(recipe_)))
        if (c.error.empty() && c.manifest.info.healthy) healthy.push_back(std::move(c));
      const bool same_start = begun_ > 0 && (healthy.empty() || healthy[0].step() <= begun_);
      const auto older = std::find_if(healthy.begin(), healthy.end(),
                                      [&](const Candidate& c) { return !same_start || c.step() < begun_; });
      if (same_start)
        text = fmt::format(
            "This run went on from step {} and has saved nothing since: go on from there, with that change, "
            "by checkpoint.resume={}. If it fails again, the state of that checkpoint is the cause: ",
            begun_, begun_path_);
      if (older == healthy.end())
        text += same_start ? "there is no older one, and checkpoint.resume=never begins afresh."
                           : "There is no checkpoint yet: the next start begins afresh.";
      else if (same_start)
        text += fmt::format("go back to step {} with checkpoint.resume={}", older->step(), older->path);
      else
        text += fmt::format(
            "The newest checkpoint is of step {}: go on from it with checkpoint.resume={}{}", older->step(),
            older->path,
            older + 1 == healthy.end()
                ? ""
                : fmt::format(", and if that fails at once, from step {} with checkpoint.resume={}",
                              older[1].step(), older[1].path));
    } catch (const Error& e) {
      text = e.what();
    }
  return broadcast_text(group, stream_, text);
}

std::vector<std::string> TrainingState::poll() {
  std::vector<std::string> lines;
  if (!writer_) return lines;
  for (const SaveReport& r : writer_->take_reports()) {
    last_failed_ = !r.ok;
    last_error_ = r.error;
    for (const std::string& note : r.notes) lines.push_back("checkpoint: " + note);
    if (r.ok) {
      last_committed_ = r.step;
      const std::string linked = r.linked_bytes > 0
                                     ? fmt::format(", {} of it frozen weights that the one before has, too",
                                                   bytes_text(r.linked_bytes))
                                     : "";
      lines.push_back(fmt::format("saved {} ({}{}, training waited {:.2f} s, written in {:.2f} s)", r.path,
                                  bytes_text(r.bytes), linked, r.stall_seconds, r.write_seconds));
      SavedCheckpoint saved{.step = r.step, .path = r.path, .eval_loss = {}};
      if (evaluated_step_ == r.step) saved.eval_loss = eval_loss_;
      if (command_) command_->saved(saved);
      if (copies_) copies_->saved(saved);
    } else {
      lines.push_back(
          fmt::format("WARNING: the checkpoint of step {} was not saved; training goes on from memory, the "
                      "last good one is of step {}: {}",
                      r.step, last_committed_, r.error));
    }
  }
  const auto add = [&](std::vector<std::string> more) { std::ranges::move(more, std::back_inserter(lines)); };
  if (command_) add(command_->take_lines());
  if (copies_) add(copies_->take_lines());
  return lines;
}

std::vector<std::string> TrainingState::finish(bool stopping) {
  if (!writer_) return {};
  if (command_ && stopping) command_->stop();
  writer_->wait();
  std::vector<std::string> lines = poll();
  const auto add = [&](std::vector<std::string> more) { std::ranges::move(more, std::back_inserter(lines)); };
  if (command_) add(command_->finish());
  if (copies_) add(copies_->finish());
  if (copies_ && !copies_->last_error().empty())
    fail(ExitCode::storage, "the last checkpoint, of step {}, could not be uploaded: {}", last_committed_,
         copies_->last_error());
  if (last_failed_) fail(ExitCode::storage, "the last checkpoint could not be saved: {}", last_error_);
  return lines;
}

}  // namespace ltrain
