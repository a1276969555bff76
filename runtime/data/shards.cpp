#include "runtime/data/shards.h"

#include <fcntl.h>
#include <sys/file.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
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

Shard make_shard(std::vector<TextFile> files, const BuildOptions& options, const Tokenizer& tokenizer) {
  Shard shard;
  std::string text = options_text(options, tokenizer);
  for (const TextFile& file : files) {
    text += file_text(file);
    shard.inputs.bytes += file.bytes;
  }
  shard.inputs.files = std::move(files);
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  shard.prefix = (fs::path(options.output) / fmt::format("{:016x}{:016x}", h.high64, h.low64)).string();
  return shard;
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
  int64_t bytes = 0, left = list.bytes;
  for (TextFile& f : list.files) {
    bytes += f.bytes;
    left -= f.bytes;
    group.push_back(std::move(f));
    // A small rest joins the last shard, which would else be too short for a sample.
    if (bytes < size || left < size / 4) continue;
    shards.push_back(make_shard(std::exchange(group, {}), options, tokenizer));
    bytes = 0;
  }
  if (!group.empty()) shards.push_back(make_shard(std::move(group), options, tokenizer));
  return shards;
}

bool is_built(const Shard& shard) { return file_exists(shard.prefix + ".idx"); }

BadRecords build_shards(const std::vector<Shard>& shards, const BuildOptions& options,
                        const std::function<void(const ShardProgress&)>& progress) {
  std::error_code error;
  fs::create_directories(options.output, error);
  if (error)
    fail(ExitCode::storage, "data.cache {}: the folder cannot be made: {}", options.output, error.message());
  BadRecords bad;
  ShardProgress p;
  for (const Shard& s : shards) p.total_bytes += s.inputs.bytes;
  for (;;) {
    const Shard* taken = nullptr;  // shard that another process builds
    p.input_bytes = 0;
    for (const Shard& shard : shards) {
      if (!is_built(shard)) {
        const Fd lock = lock_shard(shard);
        if (!lock.valid()) {
          taken = &shard;
          continue;
        }
        if (!is_built(shard)) {
          BuildOptions one = options;
          one.listed = shard.inputs;
          one.output = shard.prefix;
          one.force = true;
          one.allow_empty = true;
          one.split.clear();
          const int64_t before = p.input_bytes, tokens = p.tokens;
          one.progress = [&](const BuildProgress& b) {
            p.input_bytes = before + b.input_bytes;
            p.tokens = tokens + b.tokens;
            if (progress) progress(p);
          };
          bad.add(build_dataset(one).bad_records);
          p.input_bytes = before;
        }
        std::error_code ignored;
        fs::remove(shard.prefix + ".lock", ignored);
      }
      p.input_bytes += shard.inputs.bytes;
    }
    if (!taken) return bad;
    p.elsewhere = printable(taken->inputs.files[0].path, 200);
    if (progress) progress(p);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    p.elsewhere.clear();
  }
}

}  // namespace ltrain::data
