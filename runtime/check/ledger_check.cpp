#include "runtime/check/ledger_check.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/data/document_samples.h"
#include "runtime/data/source_union.h"
#include "runtime/program/recipe_program.h"
#include "runtime/train/sample_ledger.h"
#include "runtime/train/training_data.h"

namespace ltrain {
namespace {

namespace fs = std::filesystem;

/// Lines of one rank, one after the other.
class RankFile {
 public:
  explicit RankFile(const std::string& path) : path_(path), in_(path, std::ios::binary) {
    if (!in_) fail(ExitCode::data, "{}: cannot be read", printable(path));
    advance();
  }

  /// Step of the next line; -1: there is none.
  int64_t step() const { return step_; }

  /// Appends the samples of the next line, and goes to the line after it.
  void take(std::vector<LedgerEntry>& to) {
    try {
      const auto line = nlohmann::json::parse(line_);
      for (const auto& [file, samples] : line.at("samples").items())
        for (const auto& s : samples)
          to.push_back({s.at(0).get<int64_t>(), file, s.at(1).get<int64_t>(), s.at(2).get<uint32_t>()});
    } catch (const nlohmann::json::exception& e) {
      fail(ExitCode::data, "{}:{}: is not a line of a ledger: {}", printable(path_), number_,
           printable(e.what()));
    }
    advance();
  }

 private:
  void advance() {
    const int64_t before = step_;
    step_ = -1;
    if (!std::getline(in_, line_) || in_.eof()) return;  // an incomplete last line is from a killed rank
    ++number_;
    step_ = ledger_step(line_);
    if (step_ <= before)
      fail(ExitCode::data, "{}:{}: expected a line of a step after {}, got {}", printable(path_), number_,
           before, step_ < 0 ? "another line" : fmt::format("step {}", step_));
  }

  std::string path_, line_;
  std::ifstream in_;
  int64_t number_ = 0, step_ = -1;
};

std::vector<RankFile> rank_files(const std::string& output_dir) {
  const std::string folder = ledger_folder(output_dir);
  std::error_code error;
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".jsonl") paths.push_back(entry.path().string());
  if (paths.empty())
    fail(ExitCode::data, "{}: no ledger. A run writes one with data.ledger: true", printable(folder));
  std::sort(paths.begin(), paths.end());
  std::vector<RankFile> files;
  for (const std::string& path : paths) files.emplace_back(path);
  return files;
}

/// Samples of the recipe in the order of one process, and how often each was read.
class Reference {
 public:
  Reference(const Recipe& recipe, int64_t first_sample) {
    const Mesh alone;
    data::LoaderOptions o = training_options(recipe, alone);
    o.micro_batch = o.global_batch = 1;
    o.references = nullptr;
    o.ledger = true;
    const data::SourceUnion all = data::union_of(o.sources, o.stages);
    for (const auto& files : all.files) {
      int64_t samples = 0;
      for (const std::string& file : files)
        samples += data::count_samples(file, o.seq_length, o.packing.mode).samples;
      sources_.push_back({.file = files.at(0), .samples = samples});
      reads_.emplace_back(static_cast<size_t>(samples), 0);
    }
    loader_ = std::make_unique<data::BatchLoader>(o, first_sample);
  }

  LedgerEntry next() {
    loader_->next(batch_);
    const data::ReadSample& read = batch_.read.at(0);
    const auto source = static_cast<size_t>(read.source);
    ++sources_[source].read;
    ++reads_[source].at(static_cast<size_t>(read.in_source));
    return {batch_.sample_index.at(0), sources_[source].file, read.in_source, read.crc};
  }

  std::vector<LedgerSource> sources() {
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (reads_[i].empty()) continue;
      const auto [least, most] = std::minmax_element(reads_[i].begin(), reads_[i].end());
      sources_[i].least = *least, sources_[i].most = *most;
    }
    return sources_;
  }

 private:
  std::vector<LedgerSource> sources_;
  std::vector<std::vector<int32_t>> reads_;  // for each sample of each source
  std::unique_ptr<data::BatchLoader> loader_;
  data::Batch batch_;
};

std::string text_of(const LedgerEntry& e) {
  return fmt::format("sample {} of {} with CRC-32 {:08x}", e.in_source, printable(e.file), e.crc);
}

void compare(int64_t step, const LedgerEntry& got, const LedgerEntry& expected) {
  if (got.index != expected.index)
    fail(ExitCode::data, "step {}: expected sample {} of the run once, got {}{}", step, expected.index,
         got.index, got.index < expected.index ? " again" : "; a line or a step is missing");
  if (got.file != expected.file || got.in_source != expected.in_source || got.crc != expected.crc)
    fail(ExitCode::data, "step {}: sample {} of the run: expected {} by the order of the recipe, got {}",
         step, got.index, text_of(expected), text_of(got));
}

}  // namespace

LedgerReport check_ledger(const Recipe& recipe,
                          const std::function<void(int64_t, const std::vector<LedgerEntry>&)>& on_step) {
  std::vector<RankFile> files = rank_files(recipe.output_dir);
  LedgerReport report;
  std::optional<Reference> reference;
  for (;;) {
    int64_t step = -1;
    for (const RankFile& file : files)
      if (file.step() >= 0 && (step < 0 || file.step() < step)) step = file.step();
    if (step < 0) break;
    std::vector<LedgerEntry> entries;
    for (RankFile& file : files)
      if (file.step() == step) file.take(entries);
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
    if (entries.empty()) fail(ExitCode::data, "step {}: expected samples, got none", step);
    if (!reference) {
      report.first_step = step, report.first_sample = entries[0].index;
      if (report.first_sample < 0) fail(ExitCode::data, "step {}: got sample {}", step, report.first_sample);
      reference.emplace(recipe, report.first_sample);
    }
    for (const LedgerEntry& entry : entries) compare(step, entry, reference->next());
    report.last_step = step;
    report.samples += static_cast<int64_t>(entries.size());
    on_step(step, entries);
  }
  if (!reference) fail(ExitCode::data, "{}: has no step", printable(ledger_folder(recipe.output_dir)));
  report.sources = reference->sources();
  return report;
}

}  // namespace ltrain
