#include "runtime/data/pair_segments.h"

#include <algorithm>

#include "base/error.h"
#include "base/printable.h"

namespace ltrain::data {

void segments_of(const std::vector<int32_t>& starts, const std::vector<uint8_t>& counted,
                 const std::string& where, std::vector<int32_t>& out) {
  const size_t length = starts.size() - 1;
  out.assign(length, -1);
  int32_t segment = -1;
  for (size_t begin = 0; begin < length;) {
    size_t end = begin + 1;
    while (end < length && starts[end] != static_cast<int32_t>(end)) ++end;
    const bool trained = std::find(counted.begin() + static_cast<std::ptrdiff_t>(begin) + 1,
                                   counted.begin() + static_cast<std::ptrdiff_t>(end),
                                   uint8_t{1}) != counted.begin() + static_cast<std::ptrdiff_t>(end);
    if (trained)
      std::fill(out.begin() + static_cast<std::ptrdiff_t>(begin),
                out.begin() + static_cast<std::ptrdiff_t>(end), ++segment);
    else if (end < length)
      fail(ExitCode::data,
           "{}: the text at token {} has no token that counts, expected pairs and then padding; build the "
           "data "
           "again with ltrain data build --chat --preference",
           where, begin);
    begin = end;
  }
  if (segment % 2 == 0)
    fail(ExitCode::data,
         "{}: {} texts, expected pairs of a chosen and a rejected one; build the data again with ltrain data "
         "build --chat --preference",
         where, segment + 1);
}

PairReferences::PairReferences(const std::vector<int64_t>& samples, const std::vector<int64_t>& segments) {
  int64_t all = 0;
  for (const int64_t n : samples) source_first_.push_back(all), all += n;
  LT_CHECK(all == static_cast<int64_t>(segments.size()), "expected texts of {} samples, got {}", all,
           segments.size());
  first_.push_back(0);
  for (const int64_t n : segments) first_.push_back(first_.back() + n);
  values.assign(static_cast<size_t>(first_.back()), 0);
}

PairReferences empty_references(const std::vector<std::string>& sources, int64_t seq_length) {
  std::vector<int64_t> samples, segments, found;
  std::vector<int32_t> starts(static_cast<size_t>(seq_length) + 1), numbers;
  std::vector<uint8_t> counted(static_cast<size_t>(seq_length) + 1);
  for (const std::string& path : sources) {
    const IndexedDataset data(path);
    samples.push_back(data.info().samples(seq_length));
    for (int64_t sample = 0; sample < samples.back(); ++sample) {
      const int64_t first = sample * seq_length;
      data.read_mask(first, seq_length + 1, counted.data());
      data.document_starts(first, seq_length + 1, found);
      std::fill(starts.begin(), starts.end(), 0);
      for (const int64_t start : found)
        starts[static_cast<size_t>(start - first)] = static_cast<int32_t>(start - first);
      segments_of(starts, counted, fmt::format("{}: sample {}", printable(path), sample), numbers);
      segments.push_back(*std::max_element(numbers.begin(), numbers.end()) + 1);
    }
  }
  return {samples, segments};
}

std::shared_ptr<const PairReferences> margins_of(const std::vector<std::string>& sources,
                                                 int64_t seq_length) {
  const auto has = [](const std::string& path) { return inspect_source(path).margins; };
  if (std::none_of(sources.begin(), sources.end(), has)) return nullptr;
  auto table = std::make_shared<PairReferences>(empty_references(sources, seq_length));
  int64_t first = 0;  // text of the source in the table
  for (size_t i = 0; i < sources.size(); ++i) {
    const IndexedDataset data(sources[i]);
    const int64_t samples = data.info().samples(seq_length),
                  end = samples > 0 ? table->first(i, samples - 1) + table->segments(i, samples - 1) : first;
    if (data.info().margins) {
      const std::vector<double> margins = data.read_margins();
      if (static_cast<int64_t>(margins.size()) != (end - first) / 2)
        fail(ExitCode::data, "{}.margins: {} margins, expected those of {} pairs; build the data again",
             data.info().prefix, margins.size(), (end - first) / 2);
      for (size_t pair = 0; pair < margins.size(); ++pair)
        table->values[static_cast<size_t>(first) + 2 * pair] = margins[pair];
    }
    first = end;
  }
  return table;
}

}  // namespace ltrain::data
