// Shards of a source that a run tokenises: groups of its files, each with token files in a cache folder.
//
// The names of the token files are a function of the tokenizer, the options, and of each file of the group
// its name, its size and 16 evenly spaced blocks of 16 KiB (the full file up to 256 KiB). So a later run, or
// another run on the same data, finds them, an interrupted build goes on at the missing shard, and a file
// that changed leaves the shards of others as they are. A change of the same length between the blocks is not
// seen. An object behind a URL counts with its URL, its size and its ETag, so that nothing is downloaded for
// the names, and nothing for shards that exist. With BuildOptions::choice the evaluation data count too, and
// with DocumentChoice::deduplicate the shards before, since a shard does not repeat their documents.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/data/build.h"

namespace ltrain::data {

struct Shard {
  std::string prefix;  ///< PREFIX of its token files
  std::string marks;   ///< BuildOptions::choice: file with the marks of its documents
  InputList inputs;
};

/// Groups the inputs of `options` into shards, in their order: files of about options.shard_bytes each, at
/// most 512 shards. Lists and samples the files; writes nothing. `options.output` is the folder.
std::vector<Shard> shards_of(const BuildOptions& options, const Tokenizer& tokenizer);

bool is_built(const Shard& shard);

struct ShardProgress {
  int64_t input_bytes = 0, total_bytes = 0;  ///< sums over all shards
  int64_t tokens = 0;                        ///< made by this process
  std::string elsewhere;                     ///< name of a shard that another process builds; "": none
};

/// Shards of a list that are built: [first, end).
struct ShardRange {
  size_t first = 0, end = SIZE_MAX;
  bool wait = true;  ///< false: shards that other processes are building are left to them
};

/// Builds the shards that do not exist. Several processes, also on several nodes with the same folder, share
/// the work: each shard is built by one of them, under a lock, and all return when all shards exist. Returns
/// the bad records of the shards that this process built. `progress` may be empty; it is called before each
/// shard and after each chunk, and what it throws ends the build.
BadRecords build_shards(const std::vector<Shard>& shards, const BuildOptions& options,
                        const std::function<void(const ShardProgress&)>& progress, ShardRange range = {});

}  // namespace ltrain::data
