// Sources of all mixes of a run, each numbered once.
#pragma once
#include <string>
#include <vector>

#include "runtime/data/batch_loader.h"
#include "runtime/data/staged_order.h"

namespace ltrain::data {

struct SourceUnion {
  std::vector<std::string> paths;               ///< the first mix in its order, then new ones of later stages
  std::vector<std::vector<std::string>> files;  ///< token files of each of `paths`, in their order
  std::vector<OrderStage> stages;               ///< with numbers of `paths`

  /// Number of the source with these token files; -1: none has them.
  int find(const std::vector<std::string>& token_files) const;
};

SourceUnion union_of(const std::vector<SourceSpec>& first, const std::vector<StageSpec>& stages);

}  // namespace ltrain::data
