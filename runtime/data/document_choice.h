// Documents that a build leaves out: copies of earlier documents, and those that share an n-gram of words
// with evaluation data.
//
// A first reading of a shard marks its documents: 16 bytes for each, with the hash of its text. The build
// then leaves out a document whose hash an earlier document has, in the order of the files. The marks of a
// shard depend on its files alone, so that any process may make them, and the token files of a shard depend
// on the marks of the shards before it, never on the builder.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/input/text_input.h"
#include "runtime/data/ngrams.h"

namespace ltrain::data {

struct DocumentChoice {
  bool deduplicate = false;
  std::vector<std::string> against;  ///< files and folders of evaluation data; empty: none
  int64_t ngram = 13;                ///< words of an n-gram
  std::string marks;                 ///< file with the marks of the documents; "": they are made by the build
  std::vector<std::string> earlier;  ///< files with the marks of earlier documents
  bool on() const { return deduplicate || !against.empty(); }
};

/// Hash of a document's text, or one of the two values below.
struct DocumentMark {
  uint64_t high = 0, low = 0;
  bool operator==(const DocumentMark&) const = default;
};
constexpr DocumentMark kNotRead{0, 0};       ///< a bad record, or one that RecordOptions::where leaves out
constexpr DocumentMark kContaminated{0, 1};  ///< shares an n-gram with the evaluation data

enum class DocumentState : uint8_t { kept, duplicate, contaminated };

/// N-grams of all texts of DocumentChoice::against: of every text of a record, or of a text file. Throws
/// Error (usage) if no text has an n-gram, and Error (data) for token ids.
NgramSet evaluation_ngrams(const DocumentChoice& choice, const RecordOptions& records,
                           const Tokenizer& tokenizer);

/// Reads the documents of `list` as ChunkReader gives them, and marks them in their order. `ngrams`: null
/// without evaluation data. The result is the same for every number of workers.
std::vector<DocumentMark> mark_documents(const InputList& list, const RecordOptions& records,
                                         const Tokenizer& tokenizer, const NgramSet* ngrams,
                                         const std::vector<double>& shares, int workers, int64_t chunk_bytes);

/// Decides about the documents of `marks`. With `deduplicate`, the first document with a text is kept, where
/// those in the files `earlier` come before all of `marks`. Memory is some 80 bytes per document of `marks`.
std::vector<DocumentState> choose_documents(const std::vector<DocumentMark>& marks, bool deduplicate,
                                            const std::vector<std::string>& earlier);

void write_marks(const std::string& path, const std::vector<DocumentMark>& marks);
std::vector<DocumentMark> read_marks(const std::string& path);

}  // namespace ltrain::data
