#include "runtime/recipe/data_lists.h"

namespace ltrain {

std::vector<ListedSource> all_sources(const Recipe& r) {
  std::vector<ListedSource> all;
  const auto add = [&](const char* key, const std::vector<DataSource>& list) {
    for (const DataSource& s : list) all.push_back({key, &s});
  };
  add("data.train", r.data.train);
  for (const DataStage& stage : r.data.stages) add("data.stages", stage.train);
  add("data.eval", r.data.eval);
  return all;
}

}  // namespace ltrain
