#include "runtime/checkpoint/store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "base/fault_point.h"
#include "base/json/json.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/safetensors.h"

namespace ltrain {

namespace {

const std::string kTemporary = ".tmp-";

bool is_debris(const std::string& name) {
  return name.compare(0, 5, "step-") == 0 && name.find(kTemporary) != std::string::npos;
}
bool is_candidate(const std::string& name) { return name.compare(0, 5, "step-") == 0 && !is_debris(name); }

constexpr std::string_view kAsideNames[] = {"", "superseded", "unhealthy", "damaged", "uncommitted"};

/// Reason in a name such as superseded-step-00000100.
Aside aside_of(const std::string& name) {
  for (const Aside a : {Aside::superseded, Aside::unhealthy, Aside::damaged, Aside::uncommitted})
    if (name.starts_with(fmt::format("{}-step-", to_string(a)))) return a;
  return Aside::none;
}

}  // namespace

bool is_checkpoint(const std::string& path) {
  return path_exists(path + "/" + kManifestFile) || path_exists(path + "/" + kCommitFile);
}

Candidate read_checkpoint(const std::string& path) {
  Candidate c;
  c.path = path;
  c.name = path.substr(path.rfind('/') + 1);
  c.pinned = path_exists(path + "/" + kPinFile);
  c.aside = aside_of(c.name);
  try {
    c.manifest = read_committed(path);
    if (is_candidate(c.name) && c.name != checkpoint_name(c.manifest.info.step))
      c.note = fmt::format("the manifest says step {}", c.manifest.info.step);
  } catch (const Error& e) {
    c.error = e.what();
  }
  return c;
}

std::string_view to_string(Aside a) { return kAsideNames[static_cast<int>(a)]; }

int64_t Candidate::step() const {
  if (error.empty()) return manifest.info.step;
  int64_t step = -1;
  if (const size_t at = name.find("step-"); at != std::string::npos)
    std::from_chars(name.data() + at + 5, name.data() + name.size(), step);
  return step;
}

std::string checkpoint_name(int64_t step) { return fmt::format("step-{:08d}", step); }

std::string temporary_name(const std::string& path) {
  std::random_device device;
  return fmt::format("{}{}{:08x}{:08x}", path, kTemporary, device(), device());
}

std::string commit_record(const std::string& manifest_text) {
  return fmt::format("ltrain-commit 1\nmanifest {} bytes xxh3_128 {}\n", manifest_text.size(),
                     hash_text(manifest_text));
}

void check_commit(const std::string& commit, const std::string& manifest, const std::string& checkpoint) {
  if (commit == commit_record(manifest)) return;
  const std::string path = checkpoint + "/" + kCommitFile;
  if (commit.compare(0, 16, "ltrain-commit 1\n") != 0)
    fail(ExitCode::storage, "{}: not a commit record of version 1: damaged, or from a newer ltrain", path);
  fail(ExitCode::storage, "{}: does not match {}: the hash of its {} bytes is {}; one of the two is damaged",
       path, kManifestFile, manifest.size(), hash_text(manifest));
}

void check_sizes(const std::string& checkpoint, const Manifest& m,
                 const std::function<int64_t(const std::string& name)>& size_of) {
  for (const FileRecord& f : m.files) {
    const int64_t bytes = size_of(f.name);
    if (bytes < 0) fail(ExitCode::storage, "{}/{}: missing", checkpoint, f.name);
    if (bytes != f.bytes)
      fail(ExitCode::storage, "{}/{}: {} bytes, the manifest says {}", checkpoint, f.name, bytes, f.bytes);
  }
}

Manifest read_committed(const std::string& checkpoint) {
  const std::string commit_path = checkpoint + "/" + kCommitFile,
                    manifest_path = checkpoint + "/" + kManifestFile;
  if (!path_exists(commit_path))
    fail(ExitCode::storage, "{}: no {} record: the save was not finished", checkpoint, kCommitFile);
  const std::string commit = read_text_file(commit_path, kMaxCommitBytes);
  if (!path_exists(manifest_path))
    fail(ExitCode::storage, "{}: missing, though the checkpoint is committed", manifest_path);
  const std::string text = read_text_file(manifest_path, kMaxManifestBytes);
  check_commit(commit, text, checkpoint);
  Manifest m = manifest_from_json(text, manifest_path);
  check_sizes(checkpoint, m, [&](const std::string& name) { return file_size(checkpoint + "/" + name); });
  return m;
}

void verify_file(const std::string& checkpoint, const Manifest& m, int index) {
  const FileRecord& f = m.files.at(index);
  const std::string path = checkpoint + "/" + f.name;
  const SafetensorsFile file(path);
  if (const std::string hash = file.file().hash(); hash != f.hash)
    fail(ExitCode::storage, "{}: its xxh3-128 is {}, the manifest says {}: the file is damaged", path, hash,
         f.hash);
  for (const auto& [name, t] : m.tensors)
    for (const Piece& p : t.pieces) {
      if (p.file != index) continue;
      const SafetensorsEntry* entry = file.find(p.key);
      if (!entry)
        fail(ExitCode::storage, "{}: has no tensor \"{}\", where the manifest puts a piece of {}", path,
             p.key, name);
      if (entry->dtype != safetensors_dtype(t.dtype) ||
          entry->end - entry->begin != p.slice.elements() * dtype_size(t.dtype))
        fail(ExitCode::storage, "{}: tensor \"{}\" is {} bytes of {}, the manifest says {} of {}", path,
             p.key, entry->end - entry->begin, entry->dtype, p.slice.elements() * dtype_size(t.dtype),
             safetensors_dtype(t.dtype));
    }
}

std::vector<Candidate> list_checkpoints(const std::string& folder) {
  std::vector<Candidate> found;
  for (const std::string& name : list_folder(folder))
    if (is_candidate(name)) found.push_back(read_checkpoint(folder + "/" + name));
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.step() > b.step(); });
  return found;
}

std::vector<Candidate> list_set_aside(const std::string& folder) {
  std::vector<Candidate> found;
  for (const std::string& name : list_folder(folder))
    if (aside_of(name) != Aside::none) found.push_back(read_checkpoint(folder + "/" + name));
  return found;
}

std::string aside_name(const Candidate& c, bool damaged) {
  const Aside why = !c.error.empty() && !path_exists(c.path + "/" + kCommitFile) ? Aside::uncommitted
                    : damaged || !c.error.empty()                                ? Aside::damaged
                    : !c.manifest.info.healthy                                   ? Aside::unhealthy
                                                                                 : Aside::superseded;
  const std::string folder = c.path.substr(0, c.path.size() - c.name.size());
  const std::string wanted = fmt::format("{}-{}", to_string(why), c.name);
  std::string name = wanted;
  for (int n = 2; path_exists(folder + name); ++n) name = fmt::format("{}-{}", wanted, n);
  return name;
}

std::string set_aside(const Candidate& c, bool damaged) {
  const std::string folder = c.path.substr(0, c.path.size() - c.name.size());
  const std::string name = aside_name(c, damaged);
  LT_FAULT_POINT("checkpoint.before_set_aside");
  rename_new(c.path, folder + name);
  LT_FAULT_POINT("checkpoint.after_set_aside");
  return name;
}

std::vector<const Candidate*> left_behind(const std::vector<Candidate>& found, int64_t begun) {
  std::vector<const Candidate*> left;
  for (const Candidate& c : found)
    if (c.error.empty() && !c.pinned && c.step() > begun) left.push_back(&c);
  return left;
}

void refuse_pinned(const std::vector<Candidate>& found, int64_t begun, int64_t last) {
  for (const Candidate& c : found) {
    if (!c.pinned || c.step() <= begun || c.step() > last) continue;
    fail(ExitCode::usage,
         "{}: is pinned by its file {}, and this run, which {}, would come to step {} again{}. Choose "
         "another output_dir, or set train.train_steps below {}; without the file {} the run gives the "
         "folder another name and deletes nothing",
         c.path, kPinFile,
         begun > 0 ? fmt::format("goes on from step {}", begun) : std::string("begins afresh"), c.step(),
         c.error.empty() ? "" : fmt::format(" (it cannot be resumed from: {})", c.error), c.step(), kPinFile);
  }
}

int64_t removable_bytes(const std::vector<Candidate>& found, int64_t begun, const KeepRule& keep) {
  if (keep.latest == 0) return 0;
  int64_t bytes = 0;
  for (const Candidate& c : found)
    if (c.error.empty() && !c.pinned && !keep.permanent(c.step()) && c.step() <= begun)
      bytes += c.manifest.bytes();
  return bytes;
}

std::vector<std::string> sweep_debris(const std::string& folder) {
  std::vector<std::string> removed;
  for (const std::string& name : list_folder(folder)) {
    if (!is_debris(name)) continue;
    remove_folder(folder + "/" + name);
    removed.push_back(name);
  }
  return removed;
}

const Candidate* best_checkpoint(const std::vector<Candidate>& found) {
  const Candidate* best = nullptr;
  for (const Candidate& c : found) {
    if (!c.error.empty() || !c.manifest.info.healthy || !c.manifest.info.eval_loss) continue;
    const double loss = *c.manifest.info.eval_loss;
    if (!std::isfinite(loss)) continue;
    if (best && (loss > *best->manifest.info.eval_loss ||
                 (loss == *best->manifest.info.eval_loss && c.step() > best->step())))
      continue;
    best = &c;
  }
  return best;
}

std::string link_best(const std::string& folder, bool keep_best) {
  const std::string link = folder + "/" + kBestLink;
  std::error_code error;
  const std::string before = std::filesystem::read_symlink(link, error);
  const bool is_link = !error;
  const std::vector<Candidate> all = keep_best ? list_checkpoints(folder) : std::vector<Candidate>();
  const Candidate* best = best_checkpoint(all);
  if (!best) {
    if (is_link && !path_exists(link)) ::unlink(link.c_str());
    return "";
  }
  if (before == best->name) return "";
  const std::string fresh = fmt::format("{}.tmp-{}", link, getpid());
  ::unlink(fresh.c_str());
  if (::symlink(best->name.c_str(), fresh.c_str()) != 0 || ::rename(fresh.c_str(), link.c_str()) != 0)
    fail(ExitCode::storage, "{}: cannot be linked to {}: {}", link, best->name, std::strerror(errno));
  sync_folder(folder);
  return best->name;
}

std::vector<const Candidate*> rotated_out(const std::vector<Candidate>& all, const KeepRule& keep) {
  if (keep.latest <= 0) return {};
  const int64_t latest = std::max<int64_t>(keep.latest, 2);
  std::vector<const Candidate*> old;
  const Candidate* best = keep.best ? best_checkpoint(all) : nullptr;
  int64_t healthy = 0;
  bool newest = true;
  for (const Candidate& c : all) {
    if (!c.error.empty()) continue;
    const bool counts = c.manifest.info.healthy;
    const bool kept = newest || (counts && (healthy < latest || keep.permanent(c.step())));
    healthy += counts;
    newest = false;
    const bool in_use = keep.in_use && keep.in_use(c.step());
    if (!kept && !c.pinned && !in_use && &c != best) old.push_back(&c);
  }
  std::reverse(old.begin(), old.end());
  return old;
}

std::vector<std::string> rotate(const std::string& folder, const KeepRule& keep) {
  const std::vector<Candidate> all = list_checkpoints(folder);
  std::vector<std::string> removed;
  for (const Candidate* c : rotated_out(all, keep)) {
    LT_FAULT_POINT("checkpoint.before_delete");
    // Rename first, so that an interrupted deletion leaves debris and not a broken checkpoint.
    const std::string doomed = c->path + kTemporary + "delete-" + std::to_string(getpid());
    rename_path(c->path, doomed);
    LT_FAULT_POINT("checkpoint.mid_delete");
    remove_folder(doomed);
    removed.push_back(c->name);
  }
  if (!removed.empty()) sync_folder(folder);
  return removed;
}

}  // namespace ltrain
