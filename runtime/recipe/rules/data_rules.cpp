// Rules of mixes of data.
#include "base/error.h"
#include "runtime/recipe/data_lists.h"
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

/// Refuses names of conversations' fields for texts.
void fields_rule(const Recipe& r, const BrokenRule& broken) {
  if (r.task != Task::pretrain) return;
  for (const auto& [key, source] : all_sources(r))
    if (!source->fields.empty())
      return broken(
          key,
          fmt::format("{} has fields, names of the fields of conversations, which task: pretrain does "
                      "not read; name the field of the text by text: NAME",
                      source->path),
          {"task"});
}

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

/// Values below `length` that divide it and are nearest to `wanted`, as text.
std::string nearest_divisors(int64_t length, int64_t wanted) {
  int64_t below = 0, above = length;
  for (int64_t d = 1; d * d <= length; ++d)
    for (const int64_t divisor : {d, length / d}) {
      if (length % divisor != 0) continue;
      if (divisor <= wanted) below = std::max(below, divisor);
      if (divisor >= wanted) above = std::min(above, divisor);
    }
  return below == 0 || below == above ? std::to_string(above) : fmt::format("{} or {}", below, above);
}

/// Sequences that are shorter than a sample fill it, and are told apart by masks and positions.
void length_rule(const Recipe& r, const BrokenRule& broken) {
  const Data& d = r.data;
  const auto check = [&](const char* key, const std::string& what, const char* nearest, int64_t length) {
    if (length == 0 || length == d.seq_length) return;
    if (d.seq_length % length != 0)
      return broken(key,
                    fmt::format("{}expected a divisor of data.seq_length = {}, since sequences of {} fill "
                                "samples of {} tokens; nearest valid value{}: {}",
                                what, d.seq_length, length, d.seq_length, nearest,
                                nearest_divisors(d.seq_length, length)),
                    {"data.seq_length"});
    const auto needs = [&](const char* other, const char* value, const char* why) {
      broken(key,
             fmt::format("{}needs {}: {}, {}; nearest valid value{}: {}", what, other, value, why, nearest,
                         d.seq_length),
             {other});
    };
    if (r.task != Task::pretrain)
      return needs("task", "pretrain", "since conversations are packed when their token files are made");
    if (d.packing != data::SamplePacking::concatenate)
      return needs("data.packing", "concatenate", "since the ends of sequences cut documents");
    if (!d.reset_attention_mask)
      return needs("data.reset_attention_mask", "true", "by which tokens attend within their sequence");
    if (!d.reset_position_ids)
      needs("data.reset_position_ids", "true", "by which a sequence begins at position 0");
  };
  check("data.train_seq_length", "", "", d.train_seq_length.value_or(0));
  for (size_t i = 0; i < d.stages.size(); ++i)
    check("data.stages", fmt::format("stage {} has seq_length = {}, ", i + 1, d.stages[i].seq_length),
          " of its seq_length", d.stages[i].seq_length);
}

void data_rules(const Recipe& r, const BrokenRule& broken) {
  temperature_rule(r, broken);
  length_rule(r, broken);
  fields_rule(r, broken);
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
