#include "runtime/data/document_samples.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "base/error.h"
#include "runtime/data/identity.h"
#include "runtime/data/packer.h"

namespace ltrain::data {

DocumentSamples::DocumentSamples(int64_t seq_length, SamplePacking packing)
    : length_(seq_length), packing_(packing) {
  LT_CHECK(packing != SamplePacking::concatenate && seq_length > 0,
           "expected samples of whole documents and a length above 0, got packing {} and length {}",
           to_string(packing), seq_length);
}

void DocumentSamples::add(const IndexedDataset& source) {
  const SourceInfo& info = source.info();
  if (info.packed_length > 0)
    fail(ExitCode::data,
         "{}: its documents are packed into samples of {} tokens by the build; expected data.packing = "
         "concatenate, got {}",
         info.prefix, info.packed_length, to_string(packing_));
  const size_t number = sources_.size();
  sources_.push_back(&source);
  SampleCount& count = counts_.emplace_back();
  std::vector<int64_t>& first = first_samples_.emplace_back();
  Window window;
  for (int64_t at = 0; at < info.documents; at += kWindowDocuments) {
    pack(number, at / kWindowDocuments, window);
    first.push_back(count.samples);
    count.samples += window.before.back();
    for (const IndexedDataset::Range& d : window.documents) count.cut += d.count > length_;
  }
  count.padding = count.samples * length_ - info.tokens;
}

void DocumentSamples::pack(size_t source, int64_t number, Window& out) const {
  const IndexedDataset& data = *sources_[source];
  const int64_t first = number * kWindowDocuments;
  const int64_t documents = std::min(kWindowDocuments, data.info().documents - first);
  out.source = source, out.number = number;
  data.documents(first, documents, out.documents);
  // The sample of each document that leads one: it is the first of those in the sample.
  std::vector<std::vector<int64_t>> led(static_cast<size_t>(documents));
  std::vector<int64_t> rests;  // documents with tokens beyond their full samples
  Packer packer(length_, kWindowDocuments);
  for (int64_t d = 0; d < documents; ++d) {
    const int64_t rest = out.documents[static_cast<size_t>(d)].count % length_;
    if (rest == 0) continue;
    if (packing_ == SamplePacking::document) led[static_cast<size_t>(d)] = {d};
    if (packing_ == SamplePacking::best_fit) packer.add(rest), rests.push_back(d);
  }
  packer.flush([&](const std::vector<int64_t>& sample) {
    std::vector<int64_t> in_order;
    for (const int64_t i : sample) in_order.push_back(rests[static_cast<size_t>(i)]);
    std::sort(in_order.begin(), in_order.end());
    led[static_cast<size_t>(in_order[0])] = std::move(in_order);
  });
  out.before.assign(1, 0);
  out.shares.assign(1, 0);
  out.packed.clear();
  for (int64_t d = 0; d < documents; ++d) {
    const auto& sample = led[static_cast<size_t>(d)];
    const int64_t full = out.documents[static_cast<size_t>(d)].count / length_;
    out.before.push_back(out.before.back() + full + !sample.empty());
    for (const int64_t other : sample) out.packed.push_back(static_cast<int32_t>(other));
    out.shares.push_back(static_cast<int32_t>(out.packed.size()));
  }
}

const DocumentSamples::Window& DocumentSamples::window(size_t source, int64_t number) {
  ++uses_;
  for (Window& w : kept_)
    if (w.source == source && w.number == number) return w.used = uses_, w;
  if (static_cast<int64_t>(kept_.size()) < kKeptWindows) kept_.emplace_back();
  Window& oldest = *std::min_element(kept_.begin(), kept_.end(),
                                     [](const Window& a, const Window& b) { return a.used < b.used; });
  pack(source, number, oldest);
  oldest.used = uses_;
  return oldest;
}

void DocumentSamples::sample(size_t source, int64_t number, std::vector<Run>& out) {
  LT_CHECK(source < sources_.size() && number >= 0 && number < counts_[source].samples,
           "expected a sample of {} sources, got sample {} of source {}", sources_.size(), number, source);
  const std::vector<int64_t>& first = first_samples_[source];
  const auto after = std::upper_bound(first.begin(), first.end(), number);
  const Window& w = window(source, after - first.begin() - 1);
  number -= *(after - 1);
  const auto next = std::upper_bound(w.before.begin(), w.before.end(), number);
  const auto d = static_cast<size_t>(next - w.before.begin() - 1);
  const IndexedDataset::Range& document = w.documents[d];
  const int64_t chunk = number - w.before[d];
  out.clear();
  if (chunk < document.count / length_) {
    out.push_back({document.first + chunk * length_, length_, (chunk + 1) * length_ == document.count});
    return;
  }
  for (int32_t i = w.shares[d]; i < w.shares[d + 1]; ++i) {
    const IndexedDataset::Range& one = w.documents[static_cast<size_t>(w.packed[static_cast<size_t>(i)])];
    const int64_t rest = one.count % length_;
    out.push_back({one.first + one.count - rest, rest, true});
  }
}

int64_t DocumentSamples::memory_bytes() const {
  int64_t bytes = 0;
  for (const auto& first : first_samples_) bytes += static_cast<int64_t>(first.size()) * 8;
  return bytes;
}

SampleCount count_samples(const std::string& path, int64_t seq_length, SamplePacking packing) {
  if (packing == SamplePacking::concatenate) return {.samples = inspect_source(path).samples(seq_length)};
  static std::mutex mutex;
  static std::map<std::tuple<std::string, int64_t, SamplePacking>, SampleCount> counted;
  const IndexedDataset data(path);
  const std::tuple key{content_identity(path), seq_length, packing};
  const std::lock_guard lock(mutex);
  const auto known = counted.find(key);
  if (known != counted.end()) return known->second;
  DocumentSamples samples(seq_length, packing);
  samples.add(data);
  return counted[key] = samples.count(0);
}

}  // namespace ltrain::data
