#include "runtime/check/data_reads.h"

#include <algorithm>

#include "runtime/data/document_samples.h"
#include "runtime/program/recipe_program.h"

namespace ltrain {
namespace {

void add_statistics(const std::string& name, const std::vector<DataSource>& list, const FileReads& reads,
                    std::vector<SourceStatistics>& all) {
  const std::map<int64_t, SourceReads> reads_of = reads_by_source(list, reads);
  double weights = 0;
  for (const DataSource& s : list) weights += s.weight;
  for (const auto& [number, of] : reads_of) {
    SourceStatistics one;
    one.list = name, one.number = number, one.reads = of;
    for (const DataSource& s : list) {
      if (s.number != number) continue;
      one.share += s.weight / weights;
      for (const std::string& file : s.token_files()) {
        const data::SourceInfo info = data::inspect_source(file);
        ++one.files;
        one.documents += info.documents;
        one.tokens += info.tokens;
      }
    }
    all.push_back(one);
  }
}

}  // namespace

FileReads file_reads(const Recipe& r) {
  const Mesh alone = mesh_of(r, 0);
  const data::LoaderOptions o = loader_options(r, alone);
  FileReads reads;
  reads.files = data::union_of(o.sources, o.stages);
  for (const std::vector<std::string>& files : reads.files.files) {
    data::SampleCount all;
    for (const std::string& file : files) {
      const data::SampleCount count = data::count_samples(file, o.seq_length, o.packing.mode);
      all.samples += count.samples, all.padding += count.padding, all.cut += count.cut;
    }
    reads.samples.push_back(all.samples);
    reads.padding.push_back(all.padding);
    reads.cut.push_back(all.cut);
  }
  const data::StagedOrder order(reads.samples.size(), reads.files.stages);
  const int64_t all = samples_before_step(r, r.train.train_steps + 1);
  for (size_t i = 0; i < reads.samples.size(); ++i)
    reads.read.push_back(order.draws_before(static_cast<int>(i), all));
  return reads;
}

std::map<int64_t, SourceReads> reads_by_source(const std::vector<DataSource>& list, const FileReads& reads) {
  std::map<int64_t, SourceReads> all;
  for (const DataSource& s : list) {
    const int i = reads.files.find(s.token_files());
    if (i < 0) continue;
    all[s.number].read += reads.read[static_cast<size_t>(i)];
    all[s.number].samples += reads.samples[static_cast<size_t>(i)];
    all[s.number].padding += reads.padding[static_cast<size_t>(i)];
  }
  return all;
}

std::vector<SourceStatistics> source_statistics(const Recipe& r) {
  const FileReads reads = file_reads(r);
  std::vector<SourceStatistics> all;
  add_statistics("data.train", r.data.train, reads, all);
  for (size_t i = 0; i < r.data.stages.size(); ++i)
    add_statistics(fmt::format("data.stages.{}.train", i), r.data.stages[i].train, reads, all);
  return all;
}

}  // namespace ltrain
