#include "runtime/data/source_union.h"

#include <algorithm>

#include "runtime/data/indexed_dataset.h"

namespace ltrain::data {

int SourceUnion::find(const std::vector<std::string>& token_files) const {
  const auto same = [&](const std::vector<std::string>& other) {
    return std::equal(other.begin(), other.end(), token_files.begin(), token_files.end(),
                      [](const std::string& a, const std::string& b) {
                        return a == b || dataset_prefix(a) == dataset_prefix(b);
                      });
  };
  const auto at = std::find_if(files.begin(), files.end(), same);
  return at == files.end() ? -1 : static_cast<int>(at - files.begin());
}

SourceUnion union_of(const std::vector<SourceSpec>& first, const std::vector<StageSpec>& stages) {
  SourceUnion all;
  const auto add = [&](const SourceSpec& s) {
    all.paths.push_back(s.path);
    all.files.push_back(s.token_files());
    return static_cast<int>(all.paths.size()) - 1;
  };
  OrderStage begin;
  for (const SourceSpec& s : first) {
    begin.sources.push_back(add(s));
    begin.weights.push_back(s.weight);
  }
  all.stages.push_back(std::move(begin));
  for (const StageSpec& stage : stages) {
    OrderStage later{stage.first_sample, {}, {}};
    for (const SourceSpec& s : stage.sources) {
      const int known = all.find(s.token_files());
      later.sources.push_back(known >= 0 ? known : add(s));
      later.weights.push_back(s.weight);
    }
    all.stages.push_back(std::move(later));
  }
  return all;
}

}  // namespace ltrain::data
