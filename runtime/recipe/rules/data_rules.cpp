// Rules of mixes of data.
#include "base/error.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

namespace {

/// Refuses weights of sources beside data.temperature.
void temperature_rule(const Recipe& r, const BrokenRule& broken) {
  if (!r.data.temperature) return;
  const auto check = [&](const char* key, const std::vector<DataSource>& list) {
    for (size_t i = 0; i < list.size(); ++i)
      if (list[i].weight != 1)
        return broken(
            "data.temperature",
            fmt::format("gives the sources their weights, and source {} of {} has weight {} (expected one "
                        "of the two); nearest valid value: null",
                        i + 1, key, list[i].weight),
            {key});
  };
  check("data.train", r.data.train);
  for (const DataStage& stage : r.data.stages) check("data.stages", stage.train);
}

}  // namespace

/// Refuses what needs the number of samples of a source before step 1, when data.shuffle_window lets token
/// files be made later.
void window_rule(const Recipe& r, const BrokenRule& broken) {
  if (r.data.shuffle_window == 0) return;
  const std::string window = fmt::format("data.shuffle_window = {}", r.data.shuffle_window);
  if (r.data.temperature)
    broken(
        "data.temperature",
        fmt::format("needs the tokens of all sources before step 1, and with {} later windows are "
                    "tokenised while the run trains; give the sources weights, or nearest valid value: null",
                    window),
        {"data.shuffle_window"});
  const auto check = [&](const char* key, const std::vector<DataSource>& list) {
    for (size_t i = 0; i < list.size(); ++i)
      if (list[i].max_epochs)
        return broken(
            key,
            fmt::format(
                "source {} has max_epochs = {:g}, which is checked before step 1 by the number of its "
                "samples, and with {} later windows are tokenised while the run trains; leave "
                "max_epochs out, or set data.shuffle_window: 0",
                i + 1, *list[i].max_epochs, window),
            {"data.shuffle_window"});
  };
  check("data.train", r.data.train);
  for (const DataStage& stage : r.data.stages) check("data.stages", stage.train);
}

void data_rules(const Recipe& r, const BrokenRule& broken) {
  temperature_rule(r, broken);
  window_rule(r, broken);
  if (r.data.stages.empty()) return;
  int64_t before = 1;
  for (size_t i = 0; i < r.data.stages.size(); ++i) {
    const int64_t first = first_step(r, r.data.stages[i]);
    if (first <= before)
      return broken(
          "data.stages",
          fmt::format("stage {} begins at step {}, expected a step above {}, where the mix before it "
                      "begins; nearest valid value of its from_step: {}",
                      i + 1, first, before, before + 1),
          {});
    before = first;
  }
  if (before > r.train.train_steps)
    broken("data.stages",
           fmt::format("stage {} begins at step {}, after the last of train.train_steps = {}; nearest valid "
                       "value of its from_step: {}",
                       r.data.stages.size(), before, r.train.train_steps, r.train.train_steps),
           {"train.train_steps"});
}

}  // namespace ltrain::recipe
