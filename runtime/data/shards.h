// Shards of a source that a run tokenises: groups of its files, each with token files in a cache folder.
//
// The names of the token files are a function of what determines their bytes: the tokenizer, the options, and
// the names below the source, sizes and content of the group's files. So a later run, or another run on the
// same data, finds them, an interrupted build goes on where it stopped, and new files leave the shards of
// others as they are.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/data/build.h"

namespace ltrain::data {

struct Shard {
  std::string prefix;  ///< PREFIX of its token files
  InputList inputs;
};

/// Groups the inputs of `options` into shards, in their order: about 256 MiB of files each, at most 512
/// shards. Lists and samples the files; writes nothing. `options.output` is the folder.
std::vector<Shard> shards_of(const BuildOptions& options, const Tokenizer& tokenizer);

bool is_built(const Shard& shard);

struct ShardProgress {
  int64_t input_bytes = 0, total_bytes = 0;  ///< sums over all shards
  int64_t tokens = 0;                        ///< made by this process
  std::string elsewhere;                     ///< name of a shard that another process builds; "": none
};

/// Builds the shards that do not exist. Several processes, also on several nodes with the same folder, share
/// the work: each shard is built by one of them, under a lock, and all return when all shards exist. Returns
/// the bad records of the shards that this process built. `progress` may be empty.
BadRecords build_shards(const std::vector<Shard>& shards, const BuildOptions& options,
                        const std::function<void(const ShardProgress&)>& progress);

}  // namespace ltrain::data
