// Sources of a recipe that are text or records: their token files, which the run makes before it trains.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/data/shards.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Messages that count in the loss.
chat::MaskOptions mask_options(TrainOn train_on);

/// Returns whether a source is text or records, and not token files: it is a URL, or its path, or what
/// matches it as a pattern, exists, and there is no PATH.idx.
bool is_tokenized_by_run(const DataSource& source);

/// Returns whether the sources of a list, data.train, data.stages or data.eval, are read in windows
/// (data.shuffle_window). Held-out data are read in file order.
bool has_windows(const Data& data, const char* key);

bool has_text_sources(const Recipe& recipe);  ///< one of its sources is tokenised by the run

struct TokenizedSource {
  data::BuildOptions options;
  std::vector<data::Shard> shards;
};
/// Shards of such a source. `key`: data.train or data.eval, for messages. Throws Error (usage) if the
/// recipe's tokenizer has no token that ends a document, or for a field with task: sft; Error (data) if the
/// files cannot be read.
TokenizedSource tokenized_source(const Recipe& recipe, const DataSource& source, const char* key);

/// Token files that tokenize_sources() makes.
enum class MadeFiles : uint8_t {
  needed_first,  ///< with data.shuffle_window, the first window of each training source, and all held-out
                 ///< data
  all,           ///< all of them, in the order in which the run needs them
};

/// Builds the token files of all sources that lack them. `progress`: of one source, with its path; what it
/// throws ends the work. Returns notes, such as the number of records left out.
std::vector<std::string> tokenize_sources(
    const Recipe& recipe, MadeFiles which,
    const std::function<void(const std::string& path, const data::ShardProgress&)>& progress);

}  // namespace ltrain
