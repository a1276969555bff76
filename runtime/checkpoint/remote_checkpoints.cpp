#include "runtime/checkpoint/remote_checkpoints.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <random>

#include "base/bytes_text.h"
#include "base/fault_point.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/printable.h"
#include "parallel/comm/socket.h"
#include "runtime/checkpoint/files.h"
#include "runtime/objects/download.h"
#include "runtime/objects/object_list.h"
#include "runtime/objects/upload.h"

namespace ltrain {
namespace {

constexpr int64_t kMostCopied = int64_t{5} << 30;  // bytes of an object that one request copies
constexpr int64_t kMostOwnerBytes = 1024;

objects::Url folder_url(const std::string& url) {
  objects::Url u = objects::parse_url(url);
  while (u.path.ends_with('/')) u.path.pop_back();
  LT_CHECK(u.is_bucket() && !u.path.empty(), "expected a prefix in a bucket, got {}", u.name());
  u.path += '/';
  return u;
}

int64_t size_in(const std::map<std::string, objects::Object>& files, const std::string& file) {
  const auto found = files.find(file);
  return found == files.end() ? -1 : found->second.size;
}

}  // namespace

RemoteCheckpoints::RemoteCheckpoints(const std::string& url) : base_(folder_url(url)), store_(base_) {
  url_ = base_.name();
  url_.pop_back();
}

objects::Url RemoteCheckpoints::file_url(const std::string& copy, const std::string& file) const {
  objects::Url u = base_;
  u.path += copy + "/" + file;
  return u;
}

std::map<std::string, RemoteCheckpoints::Files> RemoteCheckpoints::folders(const std::string& names) {
  std::map<std::string, Files> found;
  for (objects::Object& o : objects::objects_with_prefix(base_, base_.path + names, store_)) {
    const std::string below = o.url.path.substr(base_.path.size());
    const size_t slash = below.find('/');
    if (slash == below.npos || !below.starts_with("step-")) continue;
    if (below.find_first_not_of("step-0123456789") < slash) continue;
    found[below.substr(0, slash)].emplace(below.substr(slash + 1), std::move(o));
  }
  return found;
}

std::string RemoteCheckpoints::read_text(const objects::Object& object, int64_t most_bytes) {
  return objects::read_whole(store_, object, most_bytes);
}

Candidate RemoteCheckpoints::read(const std::string& name, const Files& files) {
  Candidate c;
  c.path = url_ + "/" + name;
  c.name = name;
  c.pinned = files.count(kPinFile) > 0;
  const auto commit = files.find(kCommitFile), manifest = files.find(kManifestFile);
  if (commit == files.end()) {
    c.error = files.count(kSupersededFile)
                  ? fmt::format("{}: superseded: a run went back to an older step and past this one", c.path)
                  : fmt::format("{}: no {}: the upload was not finished", c.path, kCommitFile);
    return c;
  }
  try {
    if (manifest == files.end())
      fail(ExitCode::storage, "{}/{}: missing, though the checkpoint is committed", c.path, kManifestFile);
    auto& [identity, known] = manifests_[name];
    if (identity != commit->second.identity()) {
      const std::string text = read_text(manifest->second, kMaxManifestBytes);
      check_commit(read_text(commit->second, kMaxCommitBytes), text, c.path);
      known = manifest_from_json(text, c.path + "/" + kManifestFile);
      identity = commit->second.identity();
    }
    c.manifest = known;
    check_sizes(c.path, c.manifest, [&](const std::string& file) { return size_in(files, file); });
  } catch (const Error& e) {
    if (e.code() != ExitCode::storage) throw;
    c.error = e.what();
  }
  return c;
}

std::vector<Candidate> RemoteCheckpoints::read_all(const std::map<std::string, Files>& there) {
  std::vector<Candidate> found;
  for (const auto& [name, files] : there) found.push_back(read(name, files));
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.step() > b.step(); });
  return found;
}

std::vector<Candidate> RemoteCheckpoints::list() { return read_all(folders()); }

Candidate RemoteCheckpoints::find(const std::string& name) { return read(name, folders(name + "/")[name]); }

std::string RemoteCheckpoints::take() {
  objects::Url url = base_;
  url.path += kOwnerFile;
  objects::Object there;
  std::string before;
  if (store_.try_head(url, there)) before = printable(read_text(there, kMostOwnerBytes), 200);
  std::random_device device;
  owner_ = fmt::format("{} {:08x}{:08x}\n", host_name(), device(), device());
  objects::put_object(store_, url, owner_);
  return before;
}

void RemoteCheckpoints::check_owner() {
  objects::Url url = base_;
  url.path += kOwnerFile;
  objects::Object there;
  const std::string now = store_.try_head(url, there) ? read_text(there, kMostOwnerBytes) : "";
  if (now == owner_) return;
  fail(ExitCode::usage,
       "{}: another run has taken this URL ({}): this one uploads nothing more. Stop one of the two, or give "
       "each a checkpoint.remote of its own",
       url_, now.empty() ? "its object OWNER is gone" : printable(now.substr(0, now.find(' ')), 100));
}

void RemoteCheckpoints::remove(const std::string& name, const Files& files) {
  // Without COMMIT first, so that an interrupted removal leaves no copy that looks complete.
  if (files.count(kCommitFile)) objects::delete_object(store_, file_url(name, kCommitFile));
  for (const auto& [file, object] : files)
    if (file != kCommitFile) objects::delete_object(store_, object.url);
  manifests_.erase(name);
}

bool RemoteCheckpoints::copy_within(const FileRecord& file, const objects::Url& to,
                                    const std::vector<Candidate>& copies) {
  if (file.bytes > kMostCopied) return false;
  for (const Candidate& c : copies) {
    if (!c.error.empty()) continue;
    for (const FileRecord& f : c.manifest.files) {
      if (f.hash != file.hash || f.bytes != file.bytes) continue;
      const std::string from =
          "/" + base_.host + "/" + objects::percent_encoded(file_url(c.name, f.name).path, true);
      const objects::HttpResponse r = store_.send("PUT", to, {}, {{"x-amz-copy-source", from}});
      objects::Object copied;
      return r.ok() && objects::store_error(r).code.empty() && store_.try_head(to, copied) &&
             copied.size == file.bytes;
    }
  }
  return false;
}

void RemoteCheckpoints::supersede(int64_t begun, std::vector<std::string>& notes) {
  std::map<std::string, Files> there = folders();
  const std::vector<Candidate> all = read_all(there);
  for (const Candidate* c : left_behind(all, begun)) {
    const objects::Object& commit = there[c->name].at(kCommitFile);
    objects::put_object(store_, file_url(c->name, kSupersededFile), read_text(commit, kMaxCommitBytes));
    objects::delete_object(store_, commit.url);
    manifests_.erase(c->name);
    notes.push_back(
        fmt::format("{} was there already: its {} is now {}", c->path, kCommitFile, kSupersededFile));
  }
}

std::string RemoteCheckpoints::upload(const std::string& checkpoint, int64_t begun,
                                      const std::atomic<bool>& stop, std::vector<std::string>& notes) {
  check_owner();
  std::map<std::string, Files> there = folders();
  std::erase_if(there, [&](const auto& folder) {
    const Files& files = folder.second;
    if (files.count(kCommitFile) || files.count(kSupersededFile) || files.count(kPinFile)) return false;
    remove(folder.first, files);
    return true;
  });
  const std::vector<Candidate> copies = read_all(there);
  const Manifest manifest = read_committed(checkpoint);
  const std::string wanted = checkpoint_name(manifest.info.step);
  std::string name = wanted;
  for (int n = 2; there.count(name); ++n) name = fmt::format("{}-{}", wanted, n);
  for (const FileRecord& f : manifest.files) {
    const objects::Url to = file_url(name, f.name);
    if (!copy_within(f, to, copies) && !objects::upload_file(store_, to, checkpoint + "/" + f.name, &stop))
      return "";
  }
  if (!objects::upload_file(store_, file_url(name, kManifestFile), checkpoint + "/" + kManifestFile, &stop))
    return "";
  const Files now = folders(name + "/")[name];
  check_sizes(url_ + "/" + name, manifest, [&](const std::string& file) { return size_in(now, file); });
  LT_FAULT_POINT("remote.before_commit");
  check_owner();
  // A run that starts between these lines finds no copy of steps that this run went back before.
  if (!has_uploaded_) supersede(begun, notes);
  has_uploaded_ = true;
  objects::put_object(store_, file_url(name, kCommitFile),
                      read_text_file(checkpoint + "/" + kCommitFile, kMaxCommitBytes));
  return url_ + "/" + name;
}

std::vector<std::string> RemoteCheckpoints::rotate(const KeepRule& keep) {
  std::map<std::string, Files> there = folders();
  const std::vector<Candidate> all = read_all(there);
  std::vector<std::string> names;
  for (const Candidate* c : rotated_out(all, keep)) {
    remove(c->name, there[c->name]);
    names.push_back(c->name);
  }
  return names;
}

std::string RemoteCheckpoints::download(const Candidate& copy, int index, const std::string& folder) {
  const FileRecord& f = copy.manifest.files.at(static_cast<size_t>(index));
  const std::string path = folder + "/" + f.name;
  {
    const Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (fd.get() < 0) fail_system(path + ": cannot be created", errno, ExitCode::storage);
    const objects::Object object = store_.head(file_url(copy.name, f.name));
    if (object.size != f.bytes)
      return fmt::format("{}: {} bytes, the manifest says {}", object.name(), object.size, f.bytes);
    objects::download(store_, object, fd.get(), path, nullptr);
  }
  const std::string hash = ReadFile(path).hash();
  if (hash == f.hash) return "";
  return fmt::format("{}/{}: its xxh3-128 is {}, the manifest says {}: the copy is damaged", copy.path,
                     f.name, hash, f.hash);
}

void RemoteCheckpoints::download_commit(const Candidate& copy, const std::string& folder) {
  for (const char* file : {kManifestFile, kCommitFile}) {
    const objects::Object object = store_.head(file_url(copy.name, file));
    write_text_file(folder + "/" + file, read_text(object, kMaxManifestBytes));
  }
}

}  // namespace ltrain
