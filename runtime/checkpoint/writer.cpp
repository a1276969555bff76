#include "runtime/checkpoint/writer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <sstream>

#include "base/bytes_text.h"
#include "base/fault_point.h"
#include "base/limits.h"
#include "kernels/storage/offload.h"
#include "parallel/comm/host_collectives.h"
#include "parallel/comm/rank_texts.h"
#include "parallel/comm/socket.h"
#include "runtime/checkpoint/finite.h"
#include "runtime/checkpoint/safetensors.h"

namespace ltrain {

namespace {

constexpr int64_t kAlign = 64;
constexpr int64_t kReserve = 1 << 20;  // space for manifest and folders in addition to the shards

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int64_t slice_bytes(const StateSlice& s) { return s.slice.elements() * dtype_size(s.dtype); }
int64_t staged(const StateSlice& s) { return (slice_bytes(s) + kAlign - 1) / kAlign * kAlign; }

struct Skipped {};  ///< injected fault: claim a shard that was never written

}  // namespace

struct CheckpointWriter::Shared {
  std::mutex mutex;
  std::vector<SaveReport> reports;
  bool running = false;
  int64_t running_step = 0;
};

int64_t CheckpointWriter::staging_bytes(const std::vector<StateSlice>& slices) {
  int64_t n = 0;
  for (const StateSlice& s : slices) n += staged(s);
  return n;
}

CheckpointWriter::CheckpointWriter(CheckpointOptions options, const std::vector<StateSlice>& slices,
                                   Communicator& control, Stream& stream)
    : options_(std::move(options)),
      control_(control),
      stream_(stream),
      slices_(slices),
      shared_(std::make_unique<Shared>()) {
  take_file_size_as_error();
  char* at = static_cast<char*>(options_.staging);
  if (!at) {
    const int64_t bytes = staging_bytes(slices_);
    own_staging_ =
        std::make_unique<char[]>(static_cast<size_t>(bytes));  // zeroed, so that its pages are allocated
    at = own_staging_.get();
  }
  std::map<std::string, int> seen;
  for (StateSlice& s : slices_) {
    LT_CHECK(invalid_slice(s.slice).empty(), "expected a valid slice of {}, got: {}", s.name,
             invalid_slice(s.slice));
    s.data = at;
    at += staged(s);
    const int number = seen[s.name]++;
    keys_.push_back(number == 0 ? s.name : fmt::format("{}#{}", s.name, number));
  }
  prepare();
}

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::check_space(const std::vector<Candidate>& there) const {
  // Rotation needs room for the checkpoints it keeps and the one being written.
  const KeepRule& keep = options_.keep;
  int64_t count = keep.latest > 0 ? std::max<int64_t>(keep.latest, 2) + 1 : 1;
  if (keep.latest > 0 && keep.best) ++count;
  if (keep.latest > 0 && keep.every > 0)
    count += options_.last_step / keep.every - options_.begun / keep.every;
  if (options_.planned_saves >= 0) count = std::min(count, options_.planned_saves);
  const int64_t have = free_bytes(options_.folder), old = removable_bytes(there, options_.begun, keep);
  const int64_t need = count * (total_bytes_ - constant_bytes_ + kReserve) + constant_bytes_;
  if (need > have + old)
    fail(ExitCode::storage,
         "{}: {} checkpoints of {} need {}, and {} are free{}; free space there, lower "
         "checkpoint.keep_latest, or choose another output_dir",
         options_.folder, count, bytes_text(total_bytes_), bytes_text(need), bytes_text(have),
         old > 0 ? fmt::format(" and {} are held by older checkpoints", bytes_text(old)) : "");
}

void CheckpointWriter::take_folder(const std::vector<std::string>& plans) {
  const int world = control_.size();
  for (int r = 0; r < world; ++r)
    for (auto& [name, t] :
         pieces_from_json(plans[r], fmt::format("the plan of rank {}", r), files_per_rank_ * world)) {
      auto [it, fresh] = tensors_.emplace(name, t);
      if (fresh) continue;
      LT_CHECK(it->second.dtype == t.dtype && it->second.shape == t.shape,
               "expected {} {} for tensor \"{}\" as on earlier ranks, got {} {} on rank {}",
               dtype_name(it->second.dtype), to_string(it->second.shape), name, dtype_name(t.dtype),
               to_string(t.shape), r);
      for (Piece& p : t.pieces) it->second.pieces.push_back(std::move(p));
    }
  const Manifest plan{{}, {}, tensors_};
  if (const std::string wrong = untiled(plan); !wrong.empty())
    fail(ExitCode::internal, "the ranks' slices do not make up the state: {}", wrong);
  make_folders(options_.folder);
  lock_ = std::make_unique<FolderLock>(options_.folder, "writes its checkpoints here");
  const std::vector<Candidate> there = list_checkpoints(options_.folder);
  refuse_pinned(there, options_.begun, options_.last_step);
  const std::vector<std::string> swept = sweep_debris(options_.folder);
  for (const std::string& name : swept)
    notes_.push_back(
        fmt::format("{}: removed {}, left by a save that did not finish", options_.folder, name));
  check_space(there);
  for (const Candidate* c : left_behind(there, options_.begun))
    notes_.push_back(fmt::format(
        "{} is newer than {}: the first save gives it another name, {}, and deletes nothing", c->path,
        options_.begun > 0 ? fmt::format("the step {} that this run goes on from", options_.begun)
                           : std::string("this fresh start"),
        aside_name(*c, is_damaged(*c))));
}

/// Agrees on the plan: pieces of all ranks, coverage, space. If one rank fails, every rank throws.
void CheckpointWriter::prepare() {
  const int rank = control_.rank(), world = control_.size();
  const auto constant = [](const StateSlice& s) { return s.constant; };
  const int64_t any = std::any_of(slices_.begin(), slices_.end(), constant);
  files_per_rank_ = sum_over(control_, stream_, any) > 0 ? 2 : 1;
  std::vector<SafetensorsItem> items[2];
  std::map<std::string, TensorParts> mine;
  for (size_t i = 0; i < slices_.size(); ++i) {
    const StateSlice& s = slices_[i];
    TensorParts& t = mine[s.name];
    t.dtype = s.dtype;
    t.shape = s.slice.global;
    t.pieces.push_back({file_of(s) * world + rank, keys_[i], s.slice});
    items[file_of(s)].push_back({keys_[i], s.dtype, {s.slice.elements()}, s.data});
  }
  shard_bytes_ = safetensors_size(items[0], {{"format", "pt"}});
  if (files_per_rank_ > 1)
    constant_bytes_ = sum_over(control_, stream_, safetensors_size(items[1], {{"format", "pt"}}));
  total_bytes_ = sum_over(control_, stream_, shard_bytes_) + constant_bytes_;
  const std::vector<std::string> plans = gather_texts(control_, stream_, pieces_to_json(mine));
  std::string verdict = ok_text("");
  if (rank == 0) {
    try {
      take_folder(plans);
    } catch (const Error& e) {
      verdict = error_text(e);
      lock_.reset();
    }
  }
  verdict = broadcast_text(control_, stream_, verdict);
  if (!is_ok(verdict)) throw_error(verdict);
}

/// Copies a slice to the staging buffer. Returns the number of elements that are not finite.
int64_t CheckpointWriter::copy(const StateSlice& s, char* to) const {
  const char* from = static_cast<const char*>(s.data);
  const int64_t bytes = slice_bytes(s), most = options_.touched ? kOffloadTouch : bytes,
                size = dtype_size(s.dtype);
  int64_t bad = 0;
  for (int64_t at = 0; at < bytes; at += most) {
    const int64_t n = std::min(most, bytes - at);
    if (options_.device && options_.device->device() != DeviceKind::cpu) {
      options_.device->copy(to + at, from + at, n);  // checked after the copy
    } else {
      bad += copy_and_check(s.dtype, to + at, from + at, n / size);
    }
    if (options_.touched) options_.touched();
  }
  return bad;
}

/// Describes the slices with elements that are not finite. `counts`: sums over all ranks, one per slice of
/// this rank.
std::string CheckpointWriter::not_finite(const std::vector<int64_t>& counts) {
  int64_t bad = 0, all = 0;
  std::string first;
  for (size_t i = 0; i < counts.size(); ++i) {
    bad += counts[i];
    all += slices_[i].slice.elements();
    if (counts[i] > 0 && first.empty()) first = slices_[i].name;
  }
  std::vector<int64_t> sums{bad, all};
  sum_over(control_, stream_, sums);
  if (sums[0] == 0) return "";
  for (const std::string& name : gather_texts(control_, stream_, first))
    if (!name.empty())
      return fmt::format("{} of {} elements are not finite, the first in {}", sums[0], sums[1], name);
  return "";
}

std::string CheckpointWriter::save(const CheckpointInfo& info, const std::vector<StateSlice>& slices) {
  const Clock::time_point start = Clock::now();
  SaveReport report;
  report.step = info.step;
  report.path = options_.folder + "/" + checkpoint_name(info.step);
  bool waited = false;
  int64_t waited_for = 0;
  {
    std::lock_guard lock(shared_->mutex);
    waited = shared_->running;
    waited_for = shared_->running_step;
  }
  wait();
  if (waited)
    report.notes.push_back(fmt::format(
        "waited {:.2f} s for the save of step {}: saves take longer than checkpoint.save_interval",
        since(start), waited_for));
  if (info.step == committed_step_) {
    report.ok = true;
    report.notes.push_back("this step is saved already");
    std::lock_guard lock(shared_->mutex);
    shared_->reports.push_back(std::move(report));
    return "";
  }
  LT_FAULT_POINT("checkpoint.snapshot");
  LT_CHECK(slices.size() == slices_.size(), "expected {} planned slices in a save, got {}", slices_.size(),
           slices.size());
  const bool on_device = options_.device && options_.device->device() != DeviceKind::cpu;
  if (options_.device && !on_device) options_.device->synchronize();
  std::vector<int64_t> bad(slices.size());
  for (size_t i = 0; i < slices.size(); ++i) {
    const StateSlice& s = slices[i];
    LT_CHECK(s.name == slices_[i].name && s.dtype == slices_[i].dtype && s.slice == slices_[i].slice,
             "expected slice {} of a save to be {} {} as planned, got {} {}", i, slices_[i].name,
             to_string(slices_[i].slice), s.name, to_string(s.slice));
    if (!is_staged(s)) bad[i] = copy(s, static_cast<char*>(const_cast<void*>(slices_[i].data)));
  }
  if (on_device) {
    options_.device->synchronize();
    for (size_t i = 0; i < slices_.size(); ++i)
      if (!is_staged(slices_[i]))
        bad[i] = count_not_finite(slices_[i].dtype, slices_[i].data, slices_[i].slice.elements());
  }
  if (std::string what = not_finite(bad); !what.empty()) return what;
  has_constant_ = true;
  report.stall_seconds = since(start);
  {
    std::lock_guard lock(shared_->mutex);
    shared_->running = true;
    shared_->running_step = info.step;
  }
  if (options_.async_save) {
    thread_ = std::thread(
        [this, info, report = std::move(report)]() mutable { write(std::move(info), std::move(report)); });
  } else {
    write(info, std::move(report));
  }
  return "";
}

void CheckpointWriter::wait() {
  if (thread_.joinable()) thread_.join();
}

std::vector<SaveReport> CheckpointWriter::take_reports() {
  std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->reports, {});
}

void CheckpointWriter::write(CheckpointInfo info, SaveReport report) {
  const Clock::time_point start = Clock::now();
  info.healthy = info.healthy && std::isfinite(info.loss) && std::isfinite(info.grad_norm);
  try {
    write_steps(info, report);
  } catch (const std::exception& e) {  // the group itself failed: a peer is gone
    report.ok = false;
    report.error = e.what();
  }
  report.write_seconds = since(start);
  if (!options_.async_save) report.stall_seconds += report.write_seconds;
  if (report.ok) committed_step_ = info.step;
  std::lock_guard lock(shared_->mutex);
  shared_->running = false;
  shared_->reports.push_back(std::move(report));
}

std::string CheckpointWriter::make_temporary(const std::string& path) const {
  try {
    const std::string temporary = temporary_name(path);
    const int64_t need = total_bytes_ - (constant_path_.empty() ? 0 : constant_bytes_) + kReserve;
    if (const int64_t have = free_bytes(options_.folder); have < need)
      fail(ExitCode::storage,
           "{}: a checkpoint of {} does not fit into the {} that are free; free space there, or lower "
           "checkpoint.keep_latest",
           options_.folder, bytes_text(need - kReserve), bytes_text(have));
    make_folders(temporary);
    return ok_text(temporary);
  } catch (const Error& e) {
    return error_text(e.what());
  }
}

void CheckpointWriter::rotate_old(SaveReport& report) const {
  try {
    for (const std::string& name : rotate(options_.folder, options_.keep))
      report.notes.push_back("rotation removed " + name);
    if (const std::string best = link_best(options_.folder, options_.keep.best); !best.empty())
      report.notes.push_back(
          fmt::format("{} has the lowest held-out loss: the link {} points to it", best, kBestLink));
  } catch (const Error& e) {
    report.notes.push_back(std::string("rotation failed: ") + e.what());
  }
}

void CheckpointWriter::write_steps(const CheckpointInfo& info, SaveReport& report) {
  const int rank = control_.rank();
  // 1. Rank 0 makes the folder and broadcasts its name.
  const std::string begin =
      broadcast_text(control_, stream_, rank == 0 ? make_temporary(report.path) : std::string());
  if (!is_ok(begin)) {
    report.error = rest_of(begin);
    return;
  }
  const std::string temporary = rest_of(begin);

  // 2. Every rank writes its files, and reports the result in any case.
  std::string entry;
  try {
    if (LT_FAULT_POINT("checkpoint.before_open") == FaultAction::skip) throw Skipped{};
    entry = write_file(temporary, 0, report);
    if (files_per_rank_ > 1) entry += " " + write_file(temporary, 1, report);
    sync_folder(temporary);  // sync the names too, from this host
    entry = ok_text(entry);
  } catch (const Skipped&) {
    entry = ok_text(fmt::format("{} {:032x}", shard_bytes_, 0));
  } catch (const std::exception& e) {
    entry = error_text(fmt::format("on {}: {}", host_name(), e.what()));
  }
  const std::vector<std::string> entries = gather_texts(control_, stream_, entry);

  // 3. Rank 0 commits or cleans up.
  std::string verdict;
  if (rank == 0) {
    std::string error = join_errors(entries);
    if (error.empty()) error = commit(info, entries, temporary, report);
    if (!error.empty()) {
      try {
        remove_folder(temporary);
      } catch (const Error& e) {
        error += std::string("; and the unfinished save stays: ") + e.what();
      }
    }
    verdict = error.empty() ? ok_text(std::to_string(report.bytes)) : error_text(error);
  }
  verdict = broadcast_text(control_, stream_, verdict);
  report.ok = is_ok(verdict);
  if (report.ok) {
    report.bytes = std::stoll(rest_of(verdict));
    if (files_per_rank_ > 1) constant_path_ = report.path + "/" + file_name(rank, 1);
  } else {
    report.error = rest_of(verdict);
  }
  LT_FAULT_POINT("checkpoint.done");

  // 4. Older checkpoints may be removed only now that a newer one is committed.
  if (rank == 0 && report.ok) rotate_old(report);
}

std::string CheckpointWriter::file_name(int rank, int file) const {
  const int world = control_.size();
  return shard_name(file * world + rank, files_per_rank_ * world);
}

std::string CheckpointWriter::write_file(const std::string& folder, int number, SaveReport& report) {
  const std::string path = folder + "/" + file_name(control_.rank(), number);
  // The staging buffer still has the slices: for file systems without links, and if that file is gone.
  if (number == 1 && !constant_path_.empty() && ::link(constant_path_.c_str(), path.c_str()) == 0) {
    report.linked_bytes = constant_bytes_;
    return constant_entry_;
  }
  NewFile file(path);
  std::vector<SafetensorsItem> items;
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (file_of(slices_[i]) != number) continue;
    const Slice& s = slices_[i].slice;
    // a full box keeps its shape, so that any reader sees matrices
    std::vector<int64_t> shape{s.elements()};
    if (s.is_box()) shape.assign(s.extent.dims.begin(), s.extent.dims.begin() + s.extent.rank);
    items.push_back({keys_[i], slices_[i].dtype, shape, slices_[i].data});
  }
  write_safetensors(file, items);
  const std::string entry = fmt::format("{} {}", file.bytes(), file.hash());
  if (number == 1) constant_entry_ = entry;
  return entry;
}

/// Renames a folder with the name of the checkpoint being committed. At the first commit, also renames
/// checkpoints that this run supersedes. This happens before the rename of the new checkpoint, so that a
/// resume in between finds no newer checkpoint of the superseded branch.
void CheckpointWriter::make_room(SaveReport& report) {
  const std::string name = report.path.substr(options_.folder.size() + 1);
  if (!written_.empty() && !path_exists(report.path)) return;
  const std::vector<Candidate> there = list_checkpoints(options_.folder);
  std::vector<const Candidate*> away;
  if (written_.empty()) away = left_behind(there, options_.begun);
  for (const Candidate& c : there) {
    if (c.name != name || std::find(away.begin(), away.end(), &c) != away.end()) continue;
    if (c.pinned)
      fail(ExitCode::storage, "{}: is pinned by its file {}: choose another output_dir, or remove that file",
           c.path, kPinFile);
    away.push_back(&c);
  }
  for (const Candidate* c : away)
    report.notes.push_back(fmt::format("{} was there already and has another name now: {}", c->name,
                                       set_aside(*c, is_damaged(*c))));
}

bool CheckpointWriter::is_damaged(const Candidate& c) const {
  return std::find(options_.damaged.begin(), options_.damaged.end(), c.name) != options_.damaged.end();
}

/// Returns "" or why the checkpoint was not committed.
std::string CheckpointWriter::commit(const CheckpointInfo& info, const std::vector<std::string>& entries,
                                     const std::string& temporary, SaveReport& report) {
  try {
    LT_FAULT_POINT("checkpoint.before_manifest");
    Manifest m;
    m.info = info;
    m.tensors = tensors_;
    const int world = control_.size();
    for (int i = 0; i < files_per_rank_ * world; ++i) {
      const int r = i % world;
      std::istringstream entry(rest_of(entries[static_cast<size_t>(r)]));
      FileRecord f{file_name(r, i / world), 0, ""};
      for (int file = 0; file <= i / world; ++file) entry >> f.bytes >> f.hash;
      const int64_t bytes = file_size(temporary + "/" + f.name);
      if (bytes < 0)
        fail(ExitCode::storage,
             "{}: rank {} has written {}, and rank 0 does not see it: output_dir must be on a file system "
             "that all hosts share",
             temporary, r, f.name);
      if (bytes != f.bytes)
        fail(ExitCode::storage, "{}/{}: rank {} has written {} bytes, and rank 0 sees {}", temporary, f.name,
             r, f.bytes, bytes);
      m.files.push_back(std::move(f));
    }
    const std::string text = manifest_to_json(m);
    write_text_file(temporary + "/" + kManifestFile, text);
    sync_folder(temporary);
    LT_FAULT_POINT("checkpoint.after_manifest");
    write_text_file(temporary + "/" + kCommitFile, commit_record(text));
    sync_folder(temporary);
    LT_FAULT_POINT("checkpoint.before_rename");
    make_room(report);
    rename_new(temporary, report.path);
    written_.insert(report.path.substr(options_.folder.size() + 1));
    report.bytes = m.bytes() + static_cast<int64_t>(text.size());
  } catch (const std::exception& e) {
    return e.what();
  }
  // The checkpoint has its name and counts as committed. Later failures are only notes.
  try {
    LT_FAULT_POINT("checkpoint.after_rename");
    sync_folder(options_.folder);
    LT_FAULT_POINT("checkpoint.committed");
  } catch (const std::exception& e) {
    report.notes.push_back(fmt::format("{} is complete, but: {}", report.path, e.what()));
  }
  return "";
}

}  // namespace ltrain
