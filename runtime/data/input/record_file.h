// JSON records of one file: one object per line (JSONL), or the elements of one array.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/data/input/jsonl.h"
#include "runtime/records/format.h"

namespace ltrain::data {

enum class RecordForm : uint8_t { none, lines, array };

/// Reads records one after the other in bounded memory. Throws Error (data) with file and line for a record
/// above 256 MiB and for an invalid array.
class RecordReader {
 public:
  /// Reads about `block_bytes` at a time.
  RecordReader(const records::Source& source, RecordForm form, int64_t block_bytes);

  bool next(std::string& record);  ///< false after the last record; blank lines are skipped
  /// Line on which the last record begins, counted from 1.
  int64_t line_number() const { return record_line_; }
  int64_t consumed() const { return stream_->consumed(); }  ///< bytes of the file

 private:
  bool fill();
  int peek();  // next byte; -1 at the end of the file
  int peek_after_blanks();
  bool next_line(std::string& record);
  bool next_element(std::string& record);
  void take_element(std::string& record);
  [[noreturn]] void broken(const std::string& why) const;

  std::unique_ptr<records::ByteStream> stream_;
  std::string name_;
  RecordForm form_;
  int64_t block_bytes_;
  std::string buffer_;
  size_t buffer_at_ = 0;
  int64_t line_ = 1, record_line_ = 0;
  bool begun_ = false, ended_ = false, first_block_ = true;
};

/// Properties of the records of a file, from its content.
struct RecordSniff {
  RecordForm form = RecordForm::none;
  bool first_is_object = false;  ///< the first record is one JSON object
  bool has_key = false;          ///< the first object has the key
  bool more = false;             ///< a second object exists
  std::string keys;              ///< keys of the first object
  std::string why;               ///< form none: description of the beginning of the file
};

/// Detects the form. Lines: one of the first 100 lines is a complete JSON object and the first one begins
/// with {. Array: the first element of an array is an object.
RecordSniff sniff_records(const records::Source& source, const std::string& key);

/// Bytes to read at a time from a file: `block_bytes`, or less for a small file.
int64_t block_for(const records::Source& source, int64_t block_bytes);

}  // namespace ltrain::data
