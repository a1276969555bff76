#include "runtime/data/source_union.h"

#include <algorithm>

#include "runtime/data/indexed_dataset.h"

namespace ltrain::data {

SourceUnion union_of(const std::vector<SourceSpec>& first, const std::vector<StageSpec>& stages) {
  SourceUnion all;
  OrderStage begin;
  for (const SourceSpec& s : first) {
    begin.sources.push_back(static_cast<int>(all.paths.size()));
    begin.weights.push_back(s.weight);
    all.paths.push_back(s.path);
  }
  all.stages.push_back(std::move(begin));
  for (const StageSpec& stage : stages) {
    OrderStage later{stage.first_sample, {}, {}};
    for (const SourceSpec& s : stage.sources) {
      const auto same = [&](const std::string& path) {
        return dataset_prefix(path) == dataset_prefix(s.path);
      };
      const auto at = std::find_if(all.paths.begin(), all.paths.end(), same);
      later.sources.push_back(static_cast<int>(at - all.paths.begin()));
      later.weights.push_back(s.weight);
      if (at == all.paths.end()) all.paths.push_back(s.path);
    }
    all.stages.push_back(std::move(later));
  }
  return all;
}

}  // namespace ltrain::data
