// Writes PREFIX.bin, PREFIX.idx and PREFIX.json from a stream of documents in constant memory.
#pragma once
#include <xxhash.h>

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/data/indexed_dataset.h"
#include "runtime/files/file.h"
#include "runtime/tokenizer/tokenizer.h"

namespace ltrain::data {

/// The three paths must not exist unless `force`. Nothing has its name before finish(): .bin and .json first,
/// .idx last, so a build that was cut off is not taken for a dataset.
class DatasetWriter {
 public:
  /// Element type: u16 for a vocabulary below 65500 (Megatron's rule), else i32.
  DatasetWriter(std::string prefix, const Tokenizer& tokenizer, bool append_eot, bool force,
                bool prepend_bos = false, bool split_special_tokens = false);

  /// Tokens of the current document.
  void add(const int32_t* tokens, int64_t count);
  /// Ends it, with the end-of-text id if asked for. A document without tokens leaves no trace; false then.
  bool end_document();

  /// Moves the files to their names and says what was written. Error (data) when there is no document.
  SourceInfo finish();

  int64_t documents() const { return info_.documents; }
  int64_t tokens() const { return info_.tokens; }

  /// For tests: longest sequence of the index (i32 lengths); a longer document takes several.
  int64_t max_sequence = int64_t{1} << 30;

 private:
  void put(const int32_t* tokens, int64_t count);
  void end_sequence(bool ends_document);

  SourceInfo info_;
  bool append_eot_, prepend_bos_, force_;
  OutputFile bin_;
  OutputFile lengths_;  // i32 a sequence; ~length when the document goes on in the next one
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash_;
  int64_t in_sequence_ = 0;
  bool in_document_ = false;
  std::vector<char> packed_;
};

/// Error (data) if a file of the dataset exists and `force` is false.
void refuse_overwrite(const std::string& prefix, bool force);

}  // namespace ltrain::data
