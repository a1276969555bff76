// Writes PREFIX.bin, PREFIX.idx and PREFIX.json from a stream of documents in constant memory.
#pragma once
#include <xxhash.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/indexed_dataset.h"
#include "runtime/files/file.h"
#include "runtime/tokenizer/tokenizer.h"

namespace ltrain::data {

/// Writer of a dataset. The three files must not exist unless `force`. They get their names only in finish():
/// .bin and .json first, .idx last, so an interrupted build is not taken for a dataset.
class DatasetWriter {
 public:
  /// Element type: u16 for a vocabulary below 65500 (Megatron's rule), else i32.
  DatasetWriter(std::string prefix, const Tokenizer& tokenizer, bool append_eot, bool force,
                bool prepend_bos = false, bool split_special_tokens = false);

  /// Adds a loss mask, PREFIX.mask, to the dataset. `packed_length`: SourceInfo's. Call it before the first
  /// token.
  void keep_mask(int64_t packed_length);
  /// Documents are preference pairs: SourceInfo::preference. Call it after keep_mask.
  void keep_pairs() { info_.preference = true; }
  /// Margin of the next pair: with one that is not 0, the dataset has PREFIX.margins.
  void add_margin(double margin) { margins_.push_back(margin); }
  /// Documents are labelled examples: SourceInfo::unpaired. Call it after keep_mask.
  void keep_examples() { info_.unpaired = true; }

  /// Adds tokens to the current document. `counted`: whether each counts in the loss (1 or 0); null: all do.
  void add(const int32_t* tokens, int64_t count, const uint8_t* counted = nullptr);
  /// Ends the document, with the end-of-text id if requested. Returns false for a document without tokens,
  /// which is omitted.
  bool end_document();

  /// Renames the files and returns their description. Throws Error (data) if there is no document and
  /// `filtered` left no record out.
  SourceInfo finish(const FilterCounts& filtered = {});

  int64_t documents() const { return info_.documents; }
  int64_t tokens() const { return info_.tokens; }

  /// Longest sequence of the index (i32 lengths); a longer document is stored as several. Tests change it.
  int64_t max_sequence = int64_t{1} << 30;

 private:
  void put(const int32_t* tokens, int64_t count);
  void put_mask(int64_t count, const uint8_t* counted);
  void end_sequence(bool ends_document);

  SourceInfo info_;
  bool append_eot_, prepend_bos_, force_;
  OutputFile bin_;
  OutputFile lengths_;  // i32 per sequence; ~length if the document continues in the next sequence
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash_;
  int64_t in_sequence_ = 0;
  bool in_document_ = false;
  std::vector<char> packed_;
  std::optional<OutputFile> mask_;
  uint8_t mask_byte_ = 0;  // bits of the last tokens, fewer than eight
  int64_t mask_bits_ = 0;  // bits of the mask so far
  std::vector<double> margins_;
};

/// Throws Error (data) if a file of the dataset exists and `force` is false.
void refuse_overwrite(const std::string& prefix, bool force);

}  // namespace ltrain::data
