#include "runtime/data/shards.h"

#include <fcntl.h>
#include <sys/file.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/printable.h"
#include "runtime/data/identity.h"

namespace fs = std::filesystem;

namespace ltrain::data {
namespace {

constexpr int64_t kMaxShards = 512;
constexpr int64_t kSampleBlocks = 16;  // 256 KiB of a file
constexpr int kFormatVersion = 1;      // raised when the same inputs give other token files

/// Parts of a text with their lengths, so that no two lists of parts give the same text.
template <class... Parts>
std::string joined(const Parts&... parts) {
  std::string text;
  for (const std::string& part : {fmt::format("{}", parts)...})
    text += fmt::format("{}:{},", part.size(), part);
  return text;
}

/// Text of all options that change the token files of a shard.
std::string options_text(const BuildOptions& o, const Tokenizer& tokenizer) {
  const std::string text = joined(kFormatVersion, tokenizer.name(), tokenizer.hash(), tokenizer.eot(),
                                  o.prepend_bos ? tokenizer.bos() : -1, o.append_eot, o.split_special_tokens,
                                  o.records.field.value_or(""), static_cast<int>(o.records.format),
                                  to_string(o.records.on_bad), o.chat ? chat_identity(*o.chat, o.path) : "");
  // Without a filter the names are those of earlier versions.
  return o.records.where.empty() ? text : text + joined("where", filter_text(o.records.where));
}

std::string file_text(const TextFile& file) {
  if (file.object) return joined("object", file.object->identity());
  return joined(fs::path(file.path).filename().string(), static_cast<int>(file.form),
                file.format ? file.format->name : "", sample_hash(*file.open(), kSampleBlocks));
}

/// Text of the choice of documents; "" without one. It depends on the contents of the evaluation data.
std::string choice_text(const BuildOptions& o) {
  if (!o.choice.on()) return "";
  std::string text = joined("choice", o.choice.deduplicate);
  if (o.choice.against.empty()) return text;
  text += joined("ngram", o.choice.ngram);
  RecordOptions records;
  records.objects = o.records.objects;
  for (const TextFile& file : list_inputs(o.choice.against, {}, {}, records).files) text += file_text(file);
  return text;
}

std::string hash_text(const std::string& text) {
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

/// `options`: text of them.
Shard make_shard(std::vector<TextFile> files, const std::string& options, const std::string& folder) {
  Shard shard;
  std::string text = options;
  for (const TextFile& file : files) {
    text += file_text(file);
    shard.inputs.bytes += file.bytes;
  }
  shard.inputs.files = std::move(files);
  shard.prefix = (fs::path(folder) / hash_text(text)).string();
  return shard;
}

/// Gives each shard its marks, and a name that depends on the documents before it.
void add_marks(std::vector<Shard>& shards, const BuildOptions& options) {
  std::string before;
  for (Shard& shard : shards) {
    shard.marks = shard.prefix + ".marks";
    if (!options.choice.deduplicate) continue;
    before = hash_text(joined(before, fs::path(shard.prefix).filename().string()));
    shard.prefix = (fs::path(options.output) / before).string();
  }
}

/// The lock of a shard; nothing if another process has it.
Fd lock_shard(const Shard& shard) {
  const std::string path = shard.prefix + ".lock";
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd.valid()) fail_system(path + ": cannot be opened", errno, ExitCode::storage);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno == EWOULDBLOCK) return {};
  fail_system(path + ": cannot be locked; data.cache must be a folder whose file system has locks", errno,
              ExitCode::storage);
}

}  // namespace

std::vector<Shard> shards_of(const BuildOptions& options, const Tokenizer& tokenizer) {
  InputList list = list_inputs(options.inputs, options.include, options.exclude, options.records);
  const int64_t size = std::max(options.shard_bytes, list.bytes / kMaxShards + 1);
  std::vector<Shard> shards;
  std::vector<TextFile> group;
  const std::string text = options_text(options, tokenizer) + choice_text(options);
  int64_t bytes = 0, left = list.bytes;
  for (TextFile& f : list.files) {
    bytes += f.bytes;
    left -= f.bytes;
    group.push_back(std::move(f));
    // A small rest joins the last shard, which would else be too short for a sample.
    if (bytes < size || left < size / 4) continue;
    shards.push_back(make_shard(std::exchange(group, {}), text, options.output));
    bytes = 0;
  }
  if (!group.empty()) shards.push_back(make_shard(std::move(group), text, options.output));
  if (options.choice.on()) add_marks(shards, options);
  return shards;
}

bool is_built(const Shard& shard) { return file_exists(shard.prefix + ".idx"); }

namespace {

/// Calls `make(shard)` for each shard that is not done, under its lock. Other processes share the work, and
/// all return when every shard is done, or with `wait` false is taken. `progress`: of this process.
template <class Done, class Make>
void make_missing(std::span<const Shard> shards, bool wait, ShardProgress& p,
                  const std::function<void(const ShardProgress&)>& progress, Done done, Make make) {
  for (;;) {
    const Shard* taken = nullptr;  // shard that another process makes
    p.input_bytes = 0;
    for (const Shard& shard : shards) {
      if (!done(shard)) {
        if (progress) progress(p);
        const Fd lock = lock_shard(shard);
        if (!lock.valid()) {
          taken = &shard;
          continue;
        }
        const int64_t before = p.input_bytes;
        if (!done(shard)) make(shard);
        p.input_bytes = before;
        std::error_code ignored;
        fs::remove(shard.prefix + ".lock", ignored);
      }
      p.input_bytes += shard.inputs.bytes;
    }
    if (!taken || !wait) return;
    p.elsewhere = printable(taken->inputs.files[0].path, 200);
    if (progress) progress(p);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    p.elsewhere.clear();
  }
}

/// Makes the marks of shards. The token files of a shard need those of the shards up to it.
void mark_shards(std::span<const Shard> shards, const BuildOptions& options, ShardProgress& p,
                 const std::function<void(const ShardProgress&)>& progress) {
  const auto tokenizer = make_build_tokenizer(options);
  std::optional<NgramSet> ngrams;
  const auto done = [](const Shard& shard) { return file_exists(shard.marks); };
  make_missing(shards, true, p, progress, done, [&](const Shard& shard) {
    if (!options.choice.against.empty() && !ngrams)
      ngrams = evaluation_ngrams(options.choice, options.records, *tokenizer);
    write_marks(shard.marks,
                mark_documents(shard.inputs, options.records, *tokenizer, ngrams ? &*ngrams : nullptr, {},
                               worker_count(options), options.chunk_bytes));
  });
}

}  // namespace

BadRecords build_shards(const std::vector<Shard>& shards, const BuildOptions& options,
                        const std::function<void(const ShardProgress&)>& progress, ShardRange range) {
  std::error_code error;
  fs::create_directories(options.output, error);
  if (error)
    fail(ExitCode::storage, "data.cache {}: the folder cannot be made: {}", options.output, error.message());
  BadRecords bad;
  ShardProgress p;
  const size_t end = std::min(range.end, shards.size());
  const std::span<const Shard> asked = std::span(shards).subspan(range.first, end - range.first);
  for (const Shard& s : asked) p.total_bytes += s.inputs.bytes;
  if (options.choice.on() && !std::all_of(asked.begin(), asked.end(), is_built))
    mark_shards(std::span(shards).first(end), options, p, progress);
  make_missing(asked, range.wait, p, progress, is_built, [&](const Shard& shard) {
    BuildOptions one = options;
    one.listed = shard.inputs;
    one.output = shard.prefix;
    one.force = true;
    one.allow_empty = true;
    one.split.clear();
    one.choice.marks = shard.marks;
    if (options.choice.deduplicate)
      for (const Shard* s = shards.data(); s != &shard; ++s) one.choice.earlier.push_back(s->marks);
    const int64_t before = p.input_bytes, tokens = p.tokens;
    one.progress = [&](const BuildProgress& b) {
      p.input_bytes = before + b.input_bytes;
      p.tokens = tokens + b.tokens;
      if (progress) progress(p);
    };
    bad.add(build_dataset(one).bad_records);
  });
  return bad;
}

}  // namespace ltrain::data
