// Samples of whole documents: data.packing best_fit and document (Ding et al. 2024, Fewer Truncations Improve
// Language Modeling, arXiv 2404.10830).
//
// A document is cut only if it is longer than a sample: into full samples from its start, and a rest, which
// is packed like a short document. Documents are packed in windows of kWindowDocuments, in file order. A
// sample is found from its number by packing its window again, so that the index in memory is one number per
// window, and the samples are a function of the file, the length and the packing alone.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/indexed_dataset.h"
#include "runtime/data/sample_packing.h"

namespace ltrain::data {

constexpr int64_t kWindowDocuments = 8192;
/// Packed windows that are kept for the next samples, over all sources.
constexpr int64_t kKeptWindows = 32;
/// Most memory of DocumentSamples beside its index: 32 bytes per document of the kept windows, and of four
/// more for the packing of one.
constexpr int64_t kPackingBytes = (kKeptWindows + 4) * kWindowDocuments * 32;

/// Samples of a token file, and the tokens that they hold beyond its documents.
struct SampleCount {
  int64_t samples = 0, padding = 0;
  int64_t cut = 0;  ///< documents that are longer than a sample
};

/// Samples of whole documents of several token files. Not for several threads at once.
class DocumentSamples {
 public:
  /// `packing`: best_fit or document.
  DocumentSamples(int64_t seq_length, SamplePacking packing);

  /// Adds the next source, which must outlive this, and counts its samples. Throws Error (data) if a build
  /// has packed its documents.
  void add(const IndexedDataset& source);

  const SampleCount& count(size_t source) const { return counts_[source]; }

  /// Tokens [first, first + count) of the stream of a source, at consecutive positions of a sample.
  struct Run {
    int64_t first = 0, count = 0;
    bool ends_document = true;  ///< false: the document goes on in another sample
  };
  /// Documents and parts of documents of a sample, in file order. Padding follows them.
  void sample(size_t source, int64_t number, std::vector<Run>& out);

  int64_t memory_bytes() const;  ///< the index alone, beside kPackingBytes

 private:
  /// Documents of one window. Document d has the samples [before[d], before[d + 1]) of the window: first its
  /// full ones, then the one that it shares with packed[shares[d]], ..., packed[shares[d + 1] - 1].
  struct Window {
    size_t source = 0;
    int64_t number = -1, used = 0;
    std::vector<IndexedDataset::Range> documents;
    std::vector<int64_t> before;
    std::vector<int32_t> shares, packed;
  };
  void pack(size_t source, int64_t number, Window& out) const;
  const Window& window(size_t source, int64_t number);

  std::vector<const IndexedDataset*> sources_;
  int64_t length_;
  SamplePacking packing_;
  std::vector<SampleCount> counts_;
  std::vector<std::vector<int64_t>> first_samples_;  // first sample of each window of each source
  std::vector<Window> kept_;
  int64_t uses_ = 0;
};

/// Counts the samples of one token file. Files that were counted before in this process are not read again.
SampleCount count_samples(const std::string& path, int64_t seq_length, SamplePacking packing);

}  // namespace ltrain::data
