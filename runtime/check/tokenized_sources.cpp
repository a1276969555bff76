#include "runtime/check/tokenized_sources.h"

#include <glob.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/cache_folder.h"
#include "base/error.h"
#include "base/printable.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/files/file.h"
#include "runtime/objects/url.h"
#include "runtime/recipe/data_lists.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain {
namespace {

/// Files and folders that match a pattern, sorted; the path itself if it exists or is a URL.
std::vector<std::string> paths_of(const std::string& path) {
  if (objects::is_url(path)) return {path};
  std::error_code error;
  if (std::filesystem::exists(path, error)) return {path};
  std::vector<std::string> paths;
  glob_t found{};
  if (::glob(path.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

std::string cache_of(const Recipe& r) {
  if (r.data.cache) return *r.data.cache;
  const std::string folder = cache_folder();
  if (folder.empty())
    fail(ExitCode::usage,
         "data.cache = null: no folder for token files, because neither LTRAIN_CACHE_DIR nor HOME is set;  "
         "name "
         "one in the recipe");
  return folder + "/data";
}

/// Options of the chat template and the mask. Throws Error (usage) for a field, since rows are read whole.
data::ChatBuild chat_options(const Recipe& r, const DataSource& source, const char* key) {
  if (!source.text.empty())
    fail(ExitCode::usage, "{}: {}: text = {}: with task: {} a record is read whole, as {}; leave text out",
         key, printable(source.path), printable(source.text, 60), to_string(r.task),
         reads_pairs(r.task)   ? "a preference pair"
         : r.task == Task::kto ? "a labelled example"
                               : "a conversation");
  data::ChatBuild chat;
  chat.chat_template = r.data.chat_template.value_or("");
  chat.pack = r.data.seq_length;
  chat.mask = mask_options(r.data.train_on);
  chat.preference = reads_pairs(r.task);
  chat.unpaired = r.task == Task::kto;
  chat.rows.fields = source.fields;
  return chat;
}

void check_end_token(const data::BuildOptions& o, const data::Tokenizer& tokenizer, const DataSource& source,
                     const char* key) {
  if (o.chat || tokenizer.eot() >= 0) return;
  fail(ExitCode::usage,
       "{}: {}: which token ends a document? {} has no tokenizer_config.json beside it that says eos_token. "
       "Tokenise with ltrain data build --eos-token TOKEN, and give its output as the path",
       key, printable(source.path), printable(o.path));
}

data::DocumentChoice document_choice(const Recipe& r) {
  data::DocumentChoice choice;
  choice.deduplicate = r.data.deduplicate == Deduplicate::exact;
  choice.ngram = r.data.decontaminate.ngram;
  for (const std::string& path : r.data.decontaminate.against) {
    const std::vector<std::string> paths = paths_of(path);
    if (paths.empty())
      fail(ExitCode::data,
           "data.decontaminate.against: path {}: expected a file or a folder, got nothing there",
           printable(path));
    choice.against.insert(choice.against.end(), paths.begin(), paths.end());
  }
  return choice;
}

data::BuildOptions build_options(const Recipe& r, const DataSource& source, const char* key) {
  data::BuildOptions o;
  o.inputs = paths_of(source.path);
  if (objects::is_url(source.path)) objects::refuse_query(objects::parse_url(source.path), key);
  o.output = cache_of(r);
  o.records.objects.folder = o.output + "/objects";
  o.records.objects.set_gb(r.data.object_cache_gb.value_or(0));
  o.tokenizer = r.data.tokenizer.kind->name;
  if (r.data.tokenizer.kind->takes_file()) o.path = r.data.tokenizer.path.value_or("");
  o.workers = static_cast<int>(r.data.workers);
  o.shard_bytes = std::max<int64_t>(1, std::llround(r.data.shard_mib * (1 << 20)));
  o.records.on_bad = r.data.on_bad_record;
  o.records.where = source.where;
  o.records.dataset = {source.config, source.split};
  if (std::string_view(key) != "data.eval") o.choice = document_choice(r);
  o.records.whole = r.task != Task::pretrain;
  if (r.task != Task::pretrain) o.chat = chat_options(r, source, key);
  if (!source.text.empty()) o.records.field = source.text;
  return o;
}

}  // namespace

chat::MaskOptions mask_options(TrainOn train_on) {
  chat::MaskOptions mask;
  mask.last_turn = train_on == TrainOn::last_turn;
  if (train_on == TrainOn::all) {
    mask.roles = {"system", "user", "assistant", "tool"};
    mask.stop_token = false;  // not every role ends its turn with a special token
  }
  return mask;
}

bool is_tokenized_by_run(const DataSource& source) {
  const std::string& path = source.path;
  if (objects::is_url(path)) return true;
  const auto is_tokens = [](const std::string& p) {
    return p.ends_with(".idx") ||
           (p.ends_with(".bin") && data::file_exists(p.substr(0, p.size() - 4) + ".idx"));
  };
  if (is_tokens(path) || !paths_of(path + ".idx").empty()) return false;
  const std::vector<std::string> paths = paths_of(path);
  return !paths.empty() && std::none_of(paths.begin(), paths.end(), is_tokens);
}

bool has_windows(const Data& data, const char* key) {
  return data.shuffle_window > 0 && std::string_view(key) != "data.eval";
}

bool has_text_sources(const Recipe& r) {
  const std::vector<ListedSource> all = all_sources(r);
  return std::any_of(all.begin(), all.end(),
                     [](const ListedSource& s) { return is_tokenized_by_run(*s.source); });
}

TokenizedSource tokenized_source(const Recipe& r, const DataSource& source, const char* key) {
  TokenizedSource t;
  t.options = build_options(r, source, key);
  const auto tokenizer = load_tokenizer(r);
  check_end_token(t.options, *tokenizer, source, key);
  t.shards = data::shards_of(t.options, *tokenizer);
  return t;
}

namespace {

/// A source that the run tokenises, and the notes on its records.
struct Work {
  const char* key;
  const DataSource* source;
  TokenizedSource files;
  double share = 1;  ///< weight in its list
  data::BadRecords bad = {};
};

/// Shards of a source that are built together.
struct Window {
  size_t work = 0;
  data::ShardRange shards;
  /// Later windows of data.stages come after those of data.train; then input bytes that the mix reads before.
  std::pair<bool, double> need;
};

std::vector<Work> work_of(const Recipe& r) {
  std::vector<Work> all;
  for (const auto& [key, source] : all_sources(r)) {
    if (!is_tokenized_by_run(*source)) continue;
    all.push_back({.key = key, .source = source, .files = tokenized_source(r, *source, key)});
    all.back().share = source->weight;
  }
  return all;
}

/// Windows of all sources. With data.shuffle_window, in the order in which a run needs them: those of one
/// list by the bytes before them and the weight of their source.
std::vector<Window> windows_of(const Recipe& r, const std::vector<Work>& all, MadeFiles which) {
  std::vector<Window> windows;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& shards = all[i].files.shards;
    const bool windowed = has_windows(r.data, all[i].key);
    const size_t length = windowed ? static_cast<size_t>(r.data.shuffle_window) : shards.size();
    double before = 0;
    for (size_t first = 0; first < shards.size(); first += length) {
      const size_t end = std::min(first + length, shards.size());
      if (first > 0 && which == MadeFiles::needed_first) break;
      const bool stage = first > 0 && std::string_view(all[i].key) == "data.stages";
      windows.push_back({i, {.first = first, .end = end}, {stage, before / all[i].share}});
      for (size_t s = first; s < end; ++s) before += static_cast<double>(shards[s].inputs.bytes);
    }
  }
  std::stable_sort(windows.begin(), windows.end(),
                   [](const Window& a, const Window& b) { return a.need < b.need; });
  return windows;
}

}  // namespace

std::vector<std::string> tokenize_sources(
    const Recipe& r, MadeFiles which,
    const std::function<void(const std::string& path, const data::ShardProgress&)>& progress) {
  std::vector<Work> all = work_of(r);
  const std::vector<Window> windows = windows_of(r, all, which);
  // With several windows, a builder first goes on where no other process works, and waits for the others
  // last.
  const bool several = windows.size() > all.size();
  for (const bool wait : several ? std::vector{false, true} : std::vector{true})
    for (Window w : windows) {
      Work& work = all[w.work];
      w.shards.wait = wait;
      work.bad.add(data::build_shards(
          work.files.shards, work.files.options,
          [&](const data::ShardProgress& p) { progress(work.source->path, p); }, w.shards));
    }
  std::vector<std::string> notes;
  for (const Work& w : all)
    if (const data::BadRecords& bad = w.bad; bad.skipped + bad.replaced > 0)
      notes.push_back(fmt::format("{}: {}: {} bad records left out, {} read with U+FFFD; the first: {}",
                                  w.key, printable(w.source->path), bad.skipped, bad.replaced, bad.first[0]));
  return notes;
}

}  // namespace ltrain
