#include "runtime/check/tokenized_sources.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/cache_folder.h"
#include "base/error.h"
#include "base/printable.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/files/file.h"

namespace ltrain {
namespace {

/// Files and folders that match a pattern, sorted; the path itself if it exists.
std::vector<std::string> paths_of(const std::string& path) {
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
         "data.cache = null: no folder for token files, because neither LTRAIN_CACHE_DIR nor HOME is set; "
         "name "
         "one in the recipe");
  return folder + "/data";
}

std::string label(const Recipe& r) { return std::string(to_string(r.data.tokenizer.kind)); }

data::BuildOptions build_options(const Recipe& r, const DataSource& source, const char* key) {
  data::BuildOptions o;
  o.inputs = paths_of(source.path);
  o.output = cache_of(r);
  o.tokenizer = label(r);
  if (r.data.tokenizer.kind != TokenizerKind::byte) o.path = r.data.tokenizer.path.value_or("");
  o.workers = static_cast<int>(r.data.workers);
  if (!source.text.empty()) o.records.field = source.text;
  o.records.on_bad = r.data.on_bad_record;
  o.records.dataset = {source.config, source.split};
  if (r.task == Task::sft) {
    o.chat.emplace();
    o.chat->chat_template = r.data.chat_template.value_or("");
    o.chat->pack = r.data.seq_length;
    o.chat->mask = mask_options(r.data.train_on);
    o.records.whole = true;
    o.records.field.reset();
  } else if (load_tokenizer(r)->eot() < 0)
    fail(
        ExitCode::usage,
        "{}: {}: which token ends a document? {} has no tokenizer_config.json beside it that says eos_token. "
        "Tokenise with ltrain data build --eos-token TOKEN, and give its output as the path",
        key, printable(source.path), printable(o.path));
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
  const auto is_tokens = [](const std::string& p) {
    return p.ends_with(".idx") ||
           (p.ends_with(".bin") && data::file_exists(p.substr(0, p.size() - 4) + ".idx"));
  };
  if (is_tokens(path) || !paths_of(path + ".idx").empty()) return false;
  const std::vector<std::string> paths = paths_of(path);
  return !paths.empty() && std::none_of(paths.begin(), paths.end(), is_tokens);
}

bool has_text_sources(const Recipe& r) {
  const auto any = [](const std::vector<DataSource>& sources) {
    return std::any_of(sources.begin(), sources.end(), is_tokenized_by_run);
  };
  return any(r.data.train) || any(r.data.eval);
}

std::vector<data::Shard> source_shards(const Recipe& r, const DataSource& source, const char* key) {
  return data::shards_of(build_options(r, source, key), *load_tokenizer(r));
}

std::vector<std::string> tokenize_sources(
    const Recipe& r,
    const std::function<void(const std::string& path, const data::ShardProgress&)>& progress) {
  std::vector<std::string> notes;
  for (const bool eval : {false, true})
    for (const DataSource& source : eval ? r.data.eval : r.data.train) {
      const char* key = eval ? "data.eval" : "data.train";
      if (!is_tokenized_by_run(source)) continue;
      const data::BadRecords bad =
          data::build_shards(source_shards(r, source, key), build_options(r, source, key),
                             [&](const data::ShardProgress& p) { progress(source.path, p); });
      if (bad.skipped + bad.replaced > 0)
        notes.push_back(fmt::format("{}: {}: {} bad records left out, {} read with U+FFFD; the first: {}",
                                    key, printable(source.path), bad.skipped, bad.replaced, bad.first[0]));
    }
  return notes;
}

}  // namespace ltrain
