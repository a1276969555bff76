#include "runtime/check/data_sources.h"

#include <glob.h>

#include <algorithm>

#include "base/printable.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/data/sample_order.h"
#include "runtime/files/file.h"

namespace ltrain {
namespace {

/// Number of passes above which a source is noted. Up to about this many, repeated data is nearly as good as
/// new data (Muennighoff et al. 2023, Scaling Data-Constrained Language Models).
constexpr double kManyPasses = 4;

bool is_pattern(const std::string& path) {
  return path.find_first_of("*?[") != path.npos && !data::file_exists(path + ".idx");
}

/// Prefixes of the matching token files, sorted by name.
std::vector<std::string> matching(const std::string& pattern) {
  std::vector<std::string> prefixes;
  glob_t found{};
  if (::glob((pattern + ".idx").c_str(), GLOB_NOSORT, nullptr, &found) == 0)
    for (size_t i = 0; i < found.gl_pathc; ++i) {
      const std::string file = found.gl_pathv[i];
      prefixes.push_back(file.substr(0, file.size() - 4));
    }
  ::globfree(&found);
  std::sort(prefixes.begin(), prefixes.end());
  return prefixes;
}

std::vector<DataSource> shards_of(const DataSource& source, const char* key, int64_t seq_length,
                                  bool must_match) {
  const std::vector<std::string> prefixes = matching(source.path);
  if (prefixes.empty() && must_match)
    fail(
        ExitCode::data,
        "{}: path {}: no token files match; a pattern stands for PREFIX of PREFIX.bin and PREFIX.idx, and {} "
        "is what was looked for",
        key, printable(source.path), printable(source.path + ".idx"));
  if (prefixes.empty()) return {source};
  std::vector<double> samples;
  double all = 0;
  for (const std::string& prefix : prefixes) {
    samples.push_back(
        static_cast<double>(std::max<int64_t>(data::inspect_source(prefix).samples(seq_length), 1)));
    all += samples.back();
  }
  std::vector<DataSource> shards;
  for (size_t i = 0; i < prefixes.size(); ++i)
    shards.push_back({prefixes[i], source.weight * samples[i] / all, source.name});
  return shards;
}

std::vector<DataSource> expanded(const std::vector<DataSource>& sources, const char* key, int64_t seq_length,
                                 bool must_match) {
  std::vector<DataSource> all;
  for (const DataSource& source : sources) {
    if (!is_pattern(source.path)) {
      all.push_back(source);
      continue;
    }
    for (DataSource& shard : shards_of(source, key, seq_length, must_match)) {
      const bool twice = std::any_of(all.begin(), all.end(),
                                     [&](const DataSource& other) { return other.path == shard.path; });
      if (twice)
        fail(ExitCode::usage, "{}: path {}: {} is a source already; give it once", key,
             printable(source.path), printable(shard.path));
      all.push_back(std::move(shard));
    }
  }
  if (all.size() > data::kMaxSources)
    fail(ExitCode::usage, "{}: {} token files; a mix has at most {}: build fewer, larger ones", key,
         all.size(), data::kMaxSources);
  return all;
}

data::SampleOrder order_of(const std::vector<data::SourceSpec>& sources, int64_t seq_length,
                           std::vector<int64_t>& samples) {
  std::vector<double> weights;
  for (const data::SourceSpec& s : sources) {
    samples.push_back(data::inspect_source(s.path).samples(seq_length));
    weights.push_back(s.weight);
  }
  return {samples, weights, 0, false};
}

void note_repeats(const Recipe& r, std::vector<std::string>& notes) {
  std::vector<data::SourceSpec> sources;
  for (const DataSource& s : r.data.train) sources.push_back({s.path, s.weight});
  if (sources.empty()) return;
  std::vector<int64_t> samples;
  const data::SampleOrder order = order_of(sources, r.data.seq_length, samples);
  const data::Blend& blend = order.blend();
  const double drawn =
      static_cast<double>(r.train.train_steps) * static_cast<double>(r.train.global_batch_size);
  std::string named;
  int many = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    const double share = static_cast<double>(blend.draws_per_period(static_cast<int>(i))) /
                         static_cast<double>(blend.period());
    const double passes = drawn * share / static_cast<double>(samples[i]);
    if (passes <= kManyPasses || ++many > 3) continue;
    named += fmt::format("{}{} is read {:.1f} times ({} samples)", named.empty() ? "" : ", ",
                         printable(sources[i].path), passes, samples[i]);
  }
  if (many == 0) return;
  if (many > 3) named += fmt::format(", and {} more sources more than {:g} times", many - 3, kManyPasses);
  notes.push_back(fmt::format("data.train: by step {} {}", r.train.train_steps, named));
}

}  // namespace

void expand_patterns(Recipe& r, bool must_match) {
  r.data.train = expanded(r.data.train, "data.train", r.data.seq_length, must_match);
  r.data.eval = expanded(r.data.eval, "data.eval", r.data.seq_length, must_match);
}

std::string cut_note(const EvalSet& set, int64_t seq_length, int64_t wanted) {
  if (set.sources.size() < 2) return "";
  std::vector<int64_t> samples;
  const data::SampleOrder order = order_of(set.sources, seq_length, samples);
  int64_t total = 0;
  for (int64_t n : samples) total += n;
  const int64_t evaluated = order.before_first_repeat();
  // Weights are rounded to whole draws, so a set in proportion may miss a sample or two.
  if (static_cast<double>(evaluated) >= 0.99 * static_cast<double>(std::min(total, wanted))) return "";
  size_t first = 0;
  std::string weights;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (order.blend().find(static_cast<int>(i), samples[i]) == evaluated) first = i;
    if (i < 4) weights += fmt::format("{}{}", i ? ", " : "", samples[i]);
  }
  if (samples.size() > 4) weights += ", ...";
  return fmt::format(
      "data.eval{}: {} ends after {} samples, and the set with it: {} of {} samples are evaluated. Give each "
      "source a name, for a loss of its own, or weights in proportion to the samples: {}",
      set.name.empty() ? "" : " of " + set.name, printable(set.sources[first].path), samples[first],
      evaluated, total, weights);
}

std::vector<std::string> data_notes(const Recipe& r) {
  std::vector<std::string> notes;
  note_repeats(r, notes);
  if (r.train.eval_interval == 0) return notes;
  for (const EvalSet& set : eval_sets(r))
    if (std::string note = cut_note(set, r.data.seq_length, r.train.eval_steps * r.train.global_batch_size);
        !note.empty())
      notes.push_back(std::move(note));
  return notes;
}

}  // namespace ltrain
