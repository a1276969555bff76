// Text for `data build`, as a stream of bounded chunks.
//
// A text file is one document, byte for byte. A JSON record is one document (its text key). A file longer
// than a chunk is read in pieces and stays one document. It is cut only where the tokenizer guarantees the
// same ids (Tokenizer::safe_cut). A piece of 16 MiB without a safe cut (for GPT-2: without white space) is
// cut between characters to bound memory.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/data/input/input_list.h"
#include "runtime/data/input/record_file.h"
#include "runtime/tokenizer/tokenizer.h"

namespace ltrain::data {

struct Piece {
  /// text: bytes of a document. json: a JSON record. record: the text of a record in another format. tokens:
  /// ids of a document.
  enum Kind : uint8_t { text, json, record, tokens };
  Kind kind = text;
  int64_t begin = 0, end = 0;  ///< range in Chunk::text, or in Chunk::tokens
  bool ends_document = true;
  int part = -1;         ///< part of the split for the document; -1: chosen by its index
  bool cut = false;      ///< the only document, which must be cut into the parts
  int file = 0;          ///< index in InputList::files
  int64_t line = 0;      ///< json: counted from 1
  std::string position;  ///< record and tokens: position in the file
  std::string problem;   ///< record: reason why it cannot be read
  /// record and tokens: range in Chunk::text of the fields of RecordOptions::where, as JSON.
  int64_t fields_begin = 0, fields_end = 0;
};

struct Chunk {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<Piece> pieces;
  int64_t input_bytes = 0;
  int64_t first_document = 0;  ///< number of the first piece's document in the inputs
  /// Memory of the content, which bounds a chunk. A position takes up to 64 bytes.
  int64_t bytes() const {
    return static_cast<int64_t>(text.size() + tokens.size() * 4 + pieces.size() * (sizeof(Piece) + 64));
  }
};

/// Downloads an object on a thread of its own, so that it is there when it is opened.
class ObjectPrefetch {
 public:
  ObjectPrefetch() = default;
  ~ObjectPrefetch() { wait(true); }
  ObjectPrefetch(const ObjectPrefetch&) = delete;
  ObjectPrefetch& operator=(const ObjectPrefetch&) = delete;

  /// Begins the download, unless the local copies would exceed their bound. Failures are left to the reader
  /// who opens the object.
  void start(std::shared_ptr<const objects::Object> object, const objects::CacheOptions& options);
  void wait(bool stop);  ///< until the download ends; `stop`: before its end

 private:
  std::thread thread_;
  std::atomic<bool> stop_{false};
};

/// Reads chunks. `shares`: of the split, may be empty; used only if a single document has to be cut.
class ChunkReader {
 public:
  ChunkReader(const InputList& list, const RecordOptions& options, const Tokenizer& tokenizer,
              int64_t chunk_bytes, std::vector<double> shares);
  std::optional<Chunk> next();

 private:
  void open_next();
  void prefetch_next();
  void open_text(const TextFile& f, bool cut);
  std::unique_ptr<records::RecordSource> open_records(const TextFile& f) const;
  void add_fields(Chunk& chunk, Piece& piece);
  bool read_text(Chunk& chunk);
  bool read_json(Chunk& chunk);
  bool read_records(Chunk& chunk);
  bool fill();
  int64_t consumed() const;

  const InputList& list_;
  const RecordOptions& options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  int64_t chunk_bytes_;
  std::vector<double> shares_;
  size_t file_ = 0;
  int64_t documents_ = 0;  // in the chunks before
  TextFile open_file_;     // an object keeps its local copy while it is read
  ObjectPrefetch prefetch_;
  // Reader of the open file: of its text, of its JSON records, or of its records in another format.
  std::unique_ptr<records::ByteStream> text_;
  std::optional<RecordReader> json_;
  std::unique_ptr<records::RecordSource> records_;
  std::unique_ptr<records::RecordSource> fields_;  // fields of RecordOptions::where, in step with records_
  int64_t block_ = 0, at_ = 0;                     // text: bytes to read at a time, and bytes read
  std::vector<int64_t> cuts_;                      // ends of the parts of a single document, in bytes
  size_t cut_ = 0;
  std::string buffer_;  // bytes read but not yet returned
  bool only_record_ = false;
  int64_t counted_ = 0;  // bytes of the open file that are in a chunk's input_bytes
};

/// Text of a piece of kind json or record. Returns nullopt for a bad record that `options` skips, and counts
/// it in `bad`. Throws Error (data) for a bad one otherwise. `path`: of the piece's file.
std::optional<std::string> record_text(const Chunk& chunk, const Piece& piece, const RecordOptions& options,
                                       const std::string& path, BadRecords& bad);

/// Returns whether RecordOptions::where keeps the record of a piece. A record that it cannot be applied to is
/// treated as a bad record: it stops the reading or is counted in `bad` and left out. Records that cannot be
/// read at all are kept, so that record_text() reports them.
bool is_kept(const Chunk& chunk, const Piece& piece, const RecordOptions& options, const std::string& path,
             BadRecords& bad, FilterCounts& counts);

/// Positions at which to cut a text of `size` bytes into parts of about the given shares: at line ends, else
/// between characters. `window(begin, end)` returns those bytes. Throws Error (data) if the text is too
/// short.
template <class Window>
std::vector<int64_t> cut_points(int64_t size, const std::vector<double>& shares, const std::string& name,
                                Window window);

/// Number of bytes of `window` through its last line end. Without a line end, through the end of a character.
int64_t cut_in_window(std::string_view window);
[[noreturn]] void too_short_to_cut(const std::string& name, int64_t size, size_t parts);

template <class Window>
std::vector<int64_t> cut_points(int64_t size, const std::vector<double>& shares, const std::string& name,
                                Window window) {
  std::vector<int64_t> cuts;
  double sum = 0, so_far = 0;
  for (double s : shares) sum += s;
  int64_t before = 0;
  for (size_t i = 0; i + 1 < shares.size(); ++i) {
    so_far += shares[i];
    const int64_t target = static_cast<int64_t>(size * (so_far / sum));
    const int64_t begin = target - before > (1 << 16) ? target - (1 << 16) : before;
    const int64_t cut = target > before ? begin + cut_in_window(window(begin, target)) : before;
    if (cut <= before || cut >= size) too_short_to_cut(name, size, shares.size());
    cuts.push_back(cut);
    before = cut;
  }
  cuts.push_back(size);
  return cuts;
}

}  // namespace ltrain::data
