// How often a run reads each of its training sources.
#pragma once
#include <map>
#include <vector>

#include "runtime/data/source_union.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Samples that a run of all train.train_steps reads of its token files, and those that they have.
struct FileReads {
  data::SourceUnion files;
  std::vector<int64_t> samples, read;  ///< one for each of files.paths
  /// data.packing other than concatenate: tokens of padding in the samples of each, and documents cut.
  std::vector<int64_t> padding, cut;
};

/// Reads of the training sources of a resolved recipe. The files must exist.
FileReads file_reads(const Recipe& recipe);

/// Sums over the token files of a source.
struct SourceReads {
  int64_t samples = 0, read = 0;
  int64_t padding = 0;  ///< padding tokens of the samples
  double epochs() const { return static_cast<double>(read) / static_cast<double>(samples); }
};

/// Reads of the sources of one list, by DataSource::number.
std::map<int64_t, SourceReads> reads_by_source(const std::vector<DataSource>& list, const FileReads& reads);

/// A training source of the recipe, with all of its token files.
struct SourceStatistics {
  std::string list;  ///< "data.train", "data.stages.0.train"
  int64_t number = 0;
  double share = 0;  ///< fraction of the samples of its list
  int64_t files = 0, documents = 0, tokens = 0;
  SourceReads reads;  ///< over all stages
};

/// One entry per source and list, in the order of the recipe. The files must exist.
std::vector<SourceStatistics> source_statistics(const Recipe& recipe);

}  // namespace ltrain
