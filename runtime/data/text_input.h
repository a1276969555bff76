// The text that `data build` reads, as a stream of bounded chunks.
//
// A text file is one document, byte for byte; a JSON record is one (its text key). A file longer than a
// chunk is read in pieces, cut only where the tokenizer says that this changes no id (Tokenizer::safe_cut),
// and stays one document. Only 16 MiB without any such place (for GPT-2: without white space) are cut between
// characters all the same, to bound the memory.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/input_list.h"
#include "runtime/data/record_file.h"
#include "runtime/tokenizer/tokenizer.h"

namespace ltrain::data {

struct Piece {
  enum Kind : uint8_t { text, json };
  Kind kind = text;
  int64_t begin = 0, end = 0;  ///< bytes of Chunk::text
  bool ends_document = true;
  int part = -1;     ///< which part of the split the document goes to; -1: by its index
  bool cut = false;  ///< the only document there is: cut it into the parts
  int file = 0;      ///< of InputList::files
  int64_t line = 0;  ///< json: counted from 1
};

struct Chunk {
  std::string text;
  std::vector<Piece> pieces;
  int64_t input_bytes = 0;
};

/// `shares` (of the split; may be empty) are used only when a single document has to be cut.
class ChunkReader {
 public:
  ChunkReader(const InputList& list, const Tokenizer& tokenizer, int64_t chunk_bytes,
              std::vector<double> shares);
  std::optional<Chunk> next();

 private:
  void open_next();
  bool read_text(Chunk& chunk);
  bool read_records(Chunk& chunk);
  bool fill();
  int64_t consumed() const;

  const InputList& list_;
  std::unique_ptr<Tokenizer> tokenizer_;
  int64_t chunk_bytes_;
  std::vector<double> shares_;
  size_t file_ = 0;
  std::shared_ptr<InputFile> open_;
  std::optional<RecordReader> records_;  // of the open file, if it holds records
  int64_t at_ = 0;                       // bytes of the open file that were read
  std::vector<int64_t> cuts_;            // where parts of a single document end, bytes
  size_t cut_ = 0;
  std::string buffer_;  // read and not yet given out
  bool only_record_ = false;
};

/// Where to cut a text of `size` bytes so that the parts have about the given shares: at line ends, else
/// between characters. `window(begin, end)` gives those bytes. Error (data) when there is too little.
template <class Window>
std::vector<int64_t> cut_points(int64_t size, const std::vector<double>& shares, const std::string& name,
                                Window window);

/// Bytes of `window` up to and with its last line end; without one, up to a character's end.
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
