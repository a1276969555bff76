#include "runtime/checkpoint/reader.h"

#include <cstdlib>

#include "parallel/comm/host_collectives.h"
#include "runtime/checkpoint/nf4_pieces.h"
#include "runtime/checkpoint/store.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain {

namespace {

/// Proposal of rank 0: a checkpoint, a fresh start, or an error.
struct Proposal {
  enum Kind { take, fresh, error } kind = fresh;
  std::string text;  // path, note or error
};

std::string encode(const Proposal& p) { return std::string(1, static_cast<char>('0' + p.kind)) + p.text; }
Proposal decode(const std::string& text) {
  return {static_cast<Proposal::Kind>(text.at(0) - '0'), text.substr(1)};
}

std::string list_rejections(const std::vector<std::string>& rejected) {
  std::string text;
  for (const std::string& r : rejected) text += "\n  " + r;
  return text;
}

/// Iterates over the candidates on rank 0, from newest to oldest.
class Search {
 public:
  explicit Search(const ResumeOptions& o) : explicit_(o.resume != "auto"), key_(o.key) {
    folder_ = explicit_ ? o.resume : o.folder;
    while (folder_.size() > 1 && folder_.back() == '/') folder_.pop_back();
    if (explicit_ && !path_exists(folder_)) {
      missing_ = true;
    } else if (explicit_ && is_checkpoint(folder_)) {
      single_ = true;
      candidates_.push_back(read_checkpoint(folder_));
    } else {
      candidates_ = list_checkpoints(folder_);
    }
  }

  void reject(const std::string& why) { rejected_.push_back(why); }
  /// Rejects the candidate proposed last.
  void reject_proposed(const std::string& why) {
    reject(why);
    damaged_.push_back(candidates_[at_ - 1].name);
  }
  const std::vector<std::string>& damaged() const { return damaged_; }
  const std::vector<std::string>& rejected() const { return rejected_; }

  Proposal next() {
    if (missing_)
      return {Proposal::error, fmt::format("{} = {}: there is no such file or folder", key_, folder_)};
    for (; at_ < candidates_.size(); ++at_) {
      const Candidate& c = candidates_[at_];
      if (!c.error.empty()) {
        reject(c.error);
      } else if (!c.manifest.info.healthy && !single_) {
        reject(fmt::format(
            "{}: its loss or gradient norm is not finite; name it in checkpoint.resume to take it anyway",
            c.path));
      } else {
        ++at_;
        return {Proposal::take, c.path};
      }
    }
    if (candidates_.empty() && !explicit_)
      return {Proposal::fresh, fmt::format("{}: no checkpoints: a fresh start", folder_)};
    if (candidates_.empty())
      return {Proposal::error, fmt::format("{} = {}: there is no checkpoint in it", key_, folder_)};
    return {Proposal::error,
            fmt::format("{}: no checkpoint can be used{}\nTo start afresh, set checkpoint.resume: never",
                        folder_, list_rejections(rejected_))};
  }

 private:
  bool explicit_ = false, missing_ = false, single_ = false;
  std::string key_, folder_;
  std::vector<Candidate> candidates_;
  std::vector<std::string> rejected_, damaged_;
  size_t at_ = 0;
};

/// Verifies this rank's share of the files. Returns "" or the error.
std::string verify_share(const std::string& path, const Manifest& m, int rank, int world) {
  try {
    for (int i = rank; i < static_cast<int>(m.files.size()); i += world) verify_file(path, m, i);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::vector<std::string> file_names(const Manifest& m) {
  std::vector<std::string> names;
  for (const FileRecord& f : m.files) names.push_back(f.name);
  return names;
}

bool dense(const std::vector<std::pair<std::string, std::string>>& model) {
  for (const auto& [key, value] : model)
    if (key == "moe.num_experts") return value == "0";
  return true;  // a dense model has no such key
}

/// Adds the settings that a checkpoint of an older ltrain lacks, with what it computed.
void add_younger_settings(std::vector<std::pair<std::string, std::string>>& model) {
  const std::map<std::string, std::string> there(model.begin(), model.end());
  const auto architecture = there.find("architecture");
  const Family* family = architecture == there.end() ? nullptr : find_family(architecture->second);
  if (!family) return;
  for (const recipe::Key& key : recipe::schema()) {
    if (!key.before || there.count(key.leaf())) continue;
    if (std::string value = key.before(*family); !value.empty()) model.emplace_back(key.leaf(), value);
  }
}

}  // namespace

bool says_nothing(const std::string& value) { return value == "null" || value == "[]"; }

std::string model_mismatch(const std::vector<std::pair<std::string, std::string>>& checkpoint,
                           const std::vector<std::pair<std::string, std::string>>& recipe) {
  const auto on_resume = [](const std::string& key) {
    const recipe::Key* row = recipe::find_key("model." + key);
    return row ? row->on_resume : recipe::OnResume::same;
  };
  using recipe::OnResume;
  const std::map<std::string, std::string> a(checkpoint.begin(), checkpoint.end()),
      b(recipe.begin(), recipe.end());
  std::string text;
  const auto add = [&](const std::string& key, const std::string& in_checkpoint,
                       const std::string& in_recipe) {
    text += fmt::format("{}{} is {} in the checkpoint and {} in the recipe", text.empty() ? "" : "; ", key,
                        in_checkpoint, in_recipe);
  };
  for (const auto& [key, value] : a) {
    auto it = b.find(key);
    if (on_resume(key) == OnResume::any || (it != b.end() && it->second == value)) continue;
    if (on_resume(key) == OnResume::both_or_no && it != b.end() &&
        (std::strtod(value.c_str(), nullptr) > 0) == (std::strtod(it->second.c_str(), nullptr) > 0))
      continue;
    if (it == b.end() && says_nothing(value)) continue;
    add(key, value, it == b.end() ? "absent" : it->second);
  }
  for (const auto& [key, value] : b)
    if (on_resume(key) != OnResume::any && !a.count(key) && !says_nothing(value)) add(key, "absent", value);
  return text;
}

CheckpointReader::CheckpointReader(const std::string& path, Manifest manifest)
    : PieceReader(path, file_names(manifest), join_nf4(std::move(manifest.tensors), path)),
      info_(std::move(manifest.info)) {}

std::unique_ptr<CheckpointReader> CheckpointReader::open(const ResumeOptions& options, Communicator& control,
                                                         Stream& stream, std::vector<std::string>& notes) {
  if (options.resume == "never") {
    notes.push_back("checkpoint.resume: never: a fresh start");
    return nullptr;
  }
  auto reader = find(options, control, stream, notes);
  if (reader)
    notes.push_back(fmt::format("resuming from {}, step {}{}", reader->path(), reader->info().step,
                                options.verify_hashes ? ", all hashes verified" : ""));
  return reader;
}

std::unique_ptr<CheckpointReader> CheckpointReader::open_at(const std::string& path, const std::string& key,
                                                            bool verify_hashes, Communicator& control,
                                                            Stream& stream, std::vector<std::string>& notes) {
  ResumeOptions o;
  o.folder = o.resume = path_exists(path + "/checkpoints") ? path + "/checkpoints" : path;
  o.key = key;
  o.verify_hashes = verify_hashes;
  auto reader = find(o, control, stream, notes);
  LT_CHECK(reader != nullptr, "{} = {}: expected a checkpoint or an error, got neither", key, path);
  return reader;
}

std::unique_ptr<CheckpointReader> CheckpointReader::find(const ResumeOptions& options, Communicator& control,
                                                         Stream& stream, std::vector<std::string>& notes) {
  const int rank = control.rank(), world = control.size();
  std::unique_ptr<Search> search;
  while (true) {
    Proposal proposal;
    if (rank == 0) {
      try {
        if (!search) search = std::make_unique<Search>(options);
        proposal = search->next();
      } catch (const Error& e) {
        proposal = {Proposal::error, e.what()};
      }
    }
    proposal = decode(broadcast_text(control, stream, encode(proposal)));
    if (proposal.kind == Proposal::error) throw Error(ExitCode::storage, proposal.text);
    if (proposal.kind == Proposal::fresh) {
      notes.push_back(proposal.text);
      return nullptr;
    }
    // Every rank reads the manifest itself and hashes its share of the files. An error on one rank rejects
    // the checkpoint for all.
    Manifest manifest;
    std::string objection;
    try {
      manifest = read_committed(proposal.text);
      add_younger_settings(manifest.info.model);
      if (options.verify_hashes) objection = verify_share(proposal.text, manifest, rank, world);
    } catch (const Error& e) {
      objection = e.what();
    }
    std::string first;
    for (const std::string& o : gather_texts(control, stream, objection))
      if (first.empty()) first = o;
    if (!first.empty()) {
      if (search) search->reject_proposed(first);
      continue;
    }
    if (!options.model.empty())
      if (const std::string differs = model_mismatch(manifest.info.model, options.model); !differs.empty())
        fail(ExitCode::usage,
             "{}: is of another model: {}; make the recipe agree, or choose another output_dir{}",
             proposal.text, differs,
             dense(manifest.info.model) && !dense(options.model)
                 ? fmt::format(". To begin an MoE model with this dense model's weights, give "
                               "checkpoint.upcycle: {} and another output_dir",
                               proposal.text)
                 : "");
    const std::string rejected =
        broadcast_text(control, stream, search ? list_rejections(search->rejected()) : "");
    if (!rejected.empty()) notes.push_back(fmt::format("newer checkpoints that cannot be used:{}", rejected));
    auto reader = std::unique_ptr<CheckpointReader>(new CheckpointReader(proposal.text, std::move(manifest)));
    if (search) reader->damaged_ = search->damaged();
    return reader;
  }
}

}  // namespace ltrain
