// Preference pairs of packed samples (SourceInfo::preference), and the values that a reference model gives
// them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/indexed_dataset.h"

namespace ltrain::data {

/// Texts of a sample: 0 and 1 are the chosen and the rejected text of the first pair, and so on. A text has
/// at least two tokens.
inline int64_t max_segments(int64_t seq_length) { return seq_length / 4 * 2; }

/// Number of the text of each position of a sample; -1: padding. `starts`: start of the document at each
/// position. `counted`: whether each token counts in the loss. Both have one position more than the sample.
/// `where`: name of the sample, for the message of Error (data) about texts without a counted token and texts
/// without a partner.
void segments_of(const std::vector<int32_t>& starts, const std::vector<uint8_t>& counted,
                 const std::string& where, std::vector<int32_t>& out);

/// Sums of a reference model's log-probabilities for all texts of all sources, by sample; or margins of
/// pairs, at their chosen texts.
class PairReferences {
 public:
  PairReferences() = default;
  /// `samples`: samples of each source. `segments`: texts of all samples, source after source.
  PairReferences(const std::vector<int64_t>& samples, const std::vector<int64_t>& segments);

  int64_t size() const { return static_cast<int64_t>(values.size()); }
  /// Index in `values` of a sample's first text, and its number of texts.
  int64_t first(size_t source, int64_t sample) const { return first_[at(source, sample)]; }
  int64_t segments(size_t source, int64_t sample) const {
    return first_[at(source, sample) + 1] - first_[at(source, sample)];
  }

  std::vector<double> values;

 private:
  size_t at(size_t source, int64_t sample) const {
    return static_cast<size_t>(source_first_.at(source) + sample);
  }
  std::vector<int64_t> source_first_, first_;
};

/// Reads masks and documents of all samples, and makes a table of zeros for their texts.
PairReferences empty_references(const std::vector<std::string>& sources, int64_t seq_length);

/// Margins of all pairs, 0 in sources without them. Null if no source has any. Throws Error (data) if their
/// number is not that of the pairs.
std::shared_ptr<const PairReferences> margins_of(const std::vector<std::string>& sources, int64_t seq_length);

}  // namespace ltrain::data
