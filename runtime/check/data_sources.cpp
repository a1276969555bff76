#include "runtime/check/data_sources.h"

#include <glob.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/printable.h"
#include "runtime/check/data_reads.h"
#include "runtime/check/tokenized_sources.h"
#include "runtime/data/document_samples.h"
#include "runtime/data/sample_order.h"
#include "runtime/files/file.h"

namespace ltrain {
namespace {

/// Number of passes above which a source is noted. Up to about this many, repeated data is nearly as good as
/// new data (Muennighoff et al. 2023, Scaling Data-Constrained Language Models).
constexpr double kManyPasses = 4;

/// Adds a note once, also where several stages have the source.
void add_note(Recipe& r, std::string note) {
  if (std::find(r.notes.begin(), r.notes.end(), note) == r.notes.end()) r.notes.push_back(std::move(note));
}

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

/// Token files in the place of `source`, which share its weight in proportion to their samples.
std::vector<DataSource> in_proportion(const DataSource& source, const std::vector<std::string>& prefixes,
                                      const Data& data) {
  std::vector<double> samples;
  double all = 0;
  for (const std::string& prefix : prefixes) {
    const int64_t count = data::count_samples(prefix, data.seq_length, data.packing).samples;
    samples.push_back(static_cast<double>(std::max<int64_t>(count, 1)));
    all += samples.back();
  }
  std::vector<DataSource> files;
  for (size_t i = 0; i < prefixes.size(); ++i)
    files.push_back({prefixes[i], source.weight * samples[i] / all, source.name});
  for (DataSource& file : files) file.max_epochs = source.max_epochs;
  return files;
}

/// `source` with token files that are read in windows.
DataSource in_windows(const DataSource& source, std::vector<std::string> prefixes) {
  DataSource windowed = source;
  windowed.files = std::move(prefixes);
  return windowed;
}

std::vector<DataSource> matching_files(const DataSource& source, const char* key, const Data& data,
                                       bool here) {
  const std::vector<std::string> prefixes = matching(source.path);
  if (prefixes.empty() && here)
    fail(ExitCode::data,
         "{}: path {}: nothing matches; a pattern stands for files of text or records, or for PREFIX of "
         "PREFIX.bin and PREFIX.idx, and {} was looked for too",
         key, printable(source.path), printable(source.path + ".idx"));
  if (prefixes.empty()) return {source};
  if (has_windows(data, key)) return {in_windows(source, prefixes)};
  return in_proportion(source, prefixes, data);
}

/// Phrases on what the token files of a source leave out; "" if nothing may leave documents out.
std::string left_out_text(const Recipe& r, const DataSource& source, const char* key,
                          const data::FilterCounts& all, int64_t documents) {
  const bool training = std::string_view(key) != "data.eval";
  std::string text;
  const auto add = [&](std::string phrase) { text += (text.empty() ? "" : "; ") + std::move(phrase); };
  if (!source.where.empty())
    add(fmt::format("{} of {} records kept by where: {}", all.kept, all.read,
                    printable(data::filter_text(source.where), 200)));
  if (training && r.data.deduplicate != Deduplicate::none)
    add(fmt::format("{} documents left out by deduplicate, which are copies", all.duplicates));
  if (training && !r.data.decontaminate.against.empty())
    add(fmt::format("{} documents left out by decontaminate, which share {} words with the evaluation data",
                    all.contaminated, r.data.decontaminate.ngram));
  return text.empty() ? "" : fmt::format("{}, {} documents", text, documents);
}

/// Token files without those in which filters left less than a sample. Notes what they left out.
std::vector<std::string> kept_files(Recipe& r, const DataSource& source, std::vector<std::string> prefixes,
                                    const char* key) {
  data::FilterCounts all;
  int64_t documents = 0;
  const size_t files = prefixes.size();
  std::vector<std::string> kept;
  for (const std::string& prefix : prefixes) {
    const data::SourceInfo info = data::inspect_source(prefix);
    all.add(info.filtered);
    documents += info.documents;
    if (data::has_samples(info, r.data.seq_length, r.data.packing)) kept.push_back(prefix);
  }
  const std::string text = left_out_text(r, source, key, all, documents);
  if (text.empty()) return prefixes;
  const std::string counts = fmt::format("{}: {}: {}", key, printable(source.path), text);
  if (kept.empty())
    fail(ExitCode::data, "{}; they are less than one sample of data.seq_length + 1 = {} tokens", counts,
         r.data.seq_length + 1);
  r.notes.push_back(counts +
                    (kept.size() == files
                         ? ""
                         : fmt::format("; {} of {} token files have less than one sample of them and "
                                       "are left out",
                                       files - kept.size(), files)));
  return kept;
}

/// Token files of a source of text or records; the source itself, pending, if they do not exist yet.
std::vector<DataSource> tokenized_files(Recipe& r, const DataSource& source, const char* key) {
  std::vector<std::string> prefixes;
  int64_t bytes = 0, files = 0;
  std::vector<bool> built;
  for (const data::Shard& shard : tokenized_source(r, source, key).shards) {
    prefixes.push_back(shard.prefix);
    bytes += shard.inputs.bytes;
    files += static_cast<int64_t>(shard.inputs.files.size());
    built.push_back(data::is_built(shard));
  }
  const auto all = static_cast<int64_t>(built.size()), made = std::count(built.begin(), built.end(), true);
  std::vector<std::string> kept;
  if (made == all) kept = kept_files(r, source, prefixes, key);
  const bool windows = has_windows(r.data, key);
  if (made == all && !windows) return in_proportion(source, kept, r.data);
  const int64_t first = windows ? std::min(all, r.data.shuffle_window) : all;
  if (std::find(built.begin(), built.begin() + first, false) != built.begin() + first) {
    add_note(r,
             fmt::format("{}: {}: {} files, {:.1f} MB, are tokenised {}", key, printable(source.path), files,
                         static_cast<double>(bytes) * 1e-6,
                         windows ? fmt::format("into {} token files, the first {} before the run trains and "
                                               "the others while it does",
                                               all, first)
                                 : "before the run trains"));
    DataSource pending = source;
    pending.pending = true;
    return {pending};
  }
  if (made < all)
    add_note(r, fmt::format("{}: {}: {} of {} token files exist; the others are made while the run trains",
                            key, printable(source.path), made, all));
  // A file of which filters left no sample stays in its window, which must not depend on what exists.
  DataSource windowed = in_windows(source, std::move(prefixes));
  windowed.named_by_content = true;
  return {windowed};
}

/// Refuses keys of records for a source of token files, on which they would have no effect.
void refuse_record_keys(const Recipe& r, const DataSource& source, const char* key) {
  const std::string& path = source.path;
  if (matching(path).empty() && !path.ends_with(".idx") && !path.ends_with(".bin")) return;  // nothing there
  const std::pair<const char*, bool> given[] = {{"text", !source.text.empty()},
                                                {"split", !source.split.empty()},
                                                {"config", !source.config.empty()},
                                                {"where", !source.where.empty()},
                                                {"fields", !source.fields.empty()}};
  for (const auto& [name, is_given] : given)
    if (is_given)
      fail(ExitCode::usage,
           "{}: path {}: {}: expected files of records, got token files, which have no fields. Name the "
           "records themselves, or leave {} out (`ltrain data build` has options for it)",
           key, printable(path), name, name);
  const bool deduplicates = r.data.deduplicate != Deduplicate::none;
  if (std::string_view(key) != "data.eval" && (deduplicates || !r.data.decontaminate.against.empty()))
    fail(ExitCode::usage,
         "{}: path {}: {}: expected files of text or records, got token files, whose documents are chosen "
         "already. "
         "Name the text itself, or leave the key out (`ltrain data build` has options for it)",
         key, printable(path), deduplicates ? "data.deduplicate" : "data.decontaminate.against");
}

std::vector<DataSource> expanded(Recipe& r, const std::vector<DataSource>& sources, const char* key,
                                 bool here) {
  std::vector<DataSource> all;
  for (size_t number = 0; number < sources.size(); ++number) {
    const DataSource& source = sources[number];
    const bool text = here && is_tokenized_by_run(source);
    if (here && !text) refuse_record_keys(r, source, key);
    if (!text && !is_pattern(source.path)) {
      all.push_back(source);
      all.back().number = static_cast<int64_t>(number);
      continue;
    }
    for (DataSource& file :
         text ? tokenized_files(r, source, key) : matching_files(source, key, r.data, here)) {
      const bool twice = std::any_of(all.begin(), all.end(), [&](const DataSource& other) {
        return !file.pending && (file.files.empty() ? other.path == file.path : other.files == file.files);
      });
      if (twice)
        fail(ExitCode::usage, "{}: path {}: {} is a source already; give it once", key,
             printable(source.path), printable(file.path));
      all.push_back(std::move(file));
      all.back().number = static_cast<int64_t>(number);
    }
  }
  if (all.size() > data::kMaxSources)
    fail(ExitCode::usage, "{}: {} token files; a mix has at most {}: build fewer, larger ones", key,
         all.size(), data::kMaxSources);
  return all;
}

/// Returns whether all token files of the sources exist, so that their samples can be counted.
bool all_there(const std::vector<DataSource>& sources) {
  return std::all_of(sources.begin(), sources.end(), [](const DataSource& s) {
    return !s.pending && std::all_of(s.files.begin(), s.files.end(), [](const std::string& file) {
      return data::file_exists(data::dataset_prefix(file) + ".idx");
    });
  });
}

bool any_pending(const std::vector<DataSource>& sources) {
  return std::any_of(sources.begin(), sources.end(), [](const DataSource& s) { return s.pending; });
}

bool training_pending(const Recipe& r) {
  return any_pending(r.data.train) ||
         std::any_of(r.data.stages.begin(), r.data.stages.end(),
                     [](const DataStage& stage) { return any_pending(stage.train); });
}

data::SampleOrder order_of(const std::vector<data::SourceSpec>& sources, const Data& data,
                           std::vector<int64_t>& samples) {
  std::vector<double> weights;
  for (const data::SourceSpec& s : sources) {
    samples.push_back(data::count_samples(s.path, data.seq_length, data.packing).samples);
    weights.push_back(s.weight);
  }
  return {samples, weights, 0, false};
}

/// Notes how the documents of the training sources become samples, and the share of padding in them.
void note_packing(const Recipe& r, const FileReads& reads, std::vector<std::string>& notes) {
  if (r.data.packing == data::SamplePacking::concatenate) return;
  data::SampleCount all;
  for (size_t i = 0; i < reads.samples.size(); ++i) {
    all.samples += reads.samples[i];
    all.padding += reads.padding[i];
    all.cut += reads.cut[i];
  }
  notes.push_back(
      fmt::format("data.packing = {}: {} samples of {} tokens in data.train and data.stages, {:.2f}% of them "
                  "padding; {} documents are longer than a sample and are cut",
                  to_string(r.data.packing), all.samples, r.data.seq_length,
                  100.0 * static_cast<double>(all.padding) /
                      (static_cast<double>(all.samples) * static_cast<double>(r.data.seq_length)),
                  all.cut));
}

void note_repeats(const Recipe& r, const FileReads& reads, std::vector<std::string>& notes) {
  std::string named;
  int many = 0;
  for (size_t i = 0; i < reads.samples.size(); ++i) {
    const double passes = static_cast<double>(reads.read[i]) / static_cast<double>(reads.samples[i]);
    if (passes <= kManyPasses || ++many > 3) continue;
    named += fmt::format("{}{} is read {:.1f} times ({} samples)", named.empty() ? "" : ", ",
                         printable(reads.files.paths[i]), passes, reads.samples[i]);
  }
  if (many == 0) return;
  if (many > 3) named += fmt::format(", and {} more sources more than {:g} times", many - 3, kManyPasses);
  notes.push_back(fmt::format("data.train: by step {} {}", r.train.train_steps, named));
}

/// Checks max_epochs of the sources of one list. The token files of a source count together.
void check_epochs(const Recipe& r, const char* key, const std::vector<DataSource>& list,
                  const FileReads& reads) {
  const std::map<int64_t, SourceReads> reads_of = reads_by_source(list, reads);
  for (const DataSource& s : list) {
    if (!s.max_epochs) continue;
    const SourceReads& of = reads_of.at(s.number);
    if (of.epochs() <= *s.max_epochs) continue;
    fail(ExitCode::usage,
         "{}: source {}, {}: max_epochs = {:g}: a run of train.train_steps = {} reads {} samples of its {}, "
         "which "
         "is {:.4g} epochs. Lower its weight or train.train_steps, or raise max_epochs",
         key, s.number + 1, printable(s.path), *s.max_epochs, r.train.train_steps, of.read, of.samples,
         of.epochs());
  }
}

/// Gives the sources of a list weights by their tokens, as data.temperature says. Their token files have
/// shares of 1 so far.
void weigh_by_tokens(std::vector<DataSource>& list, double temperature) {
  std::map<int64_t, double> tokens;  // sum for each source of the recipe
  double most = 1;
  for (const DataSource& s : list) {
    double& all = tokens[s.number] += static_cast<double>(data::inspect_source(s.path).tokens);
    most = std::max(most, all);
  }
  for (DataSource& s : list) s.weight *= std::pow(tokens[s.number] / most, 1 / temperature);
}

}  // namespace

void resolve_sources(Recipe& r, bool here) {
  r.data.train = expanded(r, r.data.train, "data.train", here);
  for (DataStage& stage : r.data.stages) stage.train = expanded(r, stage.train, "data.stages", here);
  r.data.eval = expanded(r, r.data.eval, "data.eval", here);
  if (!r.data.temperature || !here || training_pending(r)) return;
  weigh_by_tokens(r.data.train, *r.data.temperature);
  for (DataStage& stage : r.data.stages) weigh_by_tokens(stage.train, *r.data.temperature);
  r.data.temperature.reset();  // the weights say it now
}

bool training_files_exist(const Recipe& r) {
  return all_there(r.data.train) &&
         std::all_of(r.data.stages.begin(), r.data.stages.end(),
                     [](const DataStage& stage) { return all_there(stage.train); });
}

bool has_pending_sources(const Recipe& r) { return training_pending(r) || any_pending(r.data.eval); }

std::string cut_note(const EvalSet& set, const Data& data, int64_t wanted) {
  if (set.sources.size() < 2) return "";
  std::vector<int64_t> samples;
  const data::SampleOrder order = order_of(set.sources, data, samples);
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
  if (training_files_exist(r) && !r.data.train.empty()) {
    const FileReads reads = file_reads(r);
    check_epochs(r, "data.train", r.data.train, reads);
    for (const DataStage& stage : r.data.stages) check_epochs(r, "data.stages", stage.train, reads);
    note_packing(r, reads, notes);
    note_repeats(r, reads, notes);
  }
  if (r.train.eval_interval == 0 || any_pending(r.data.eval)) return notes;
  for (const EvalSet& set : eval_sets(r))
    if (std::string note = cut_note(set, r.data, r.train.eval_steps * r.train.global_batch_size);
        !note.empty())
      notes.push_back(std::move(note));
  return notes;
}

}  // namespace ltrain
