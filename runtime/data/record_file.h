// JSON records of one file: an object a line (JSONL), or the elements of one array.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/data/jsonl.h"
#include "runtime/files/file.h"

namespace ltrain::data {

enum class RecordForm : uint8_t { none, lines, array };

/// Reads records one after the other in bounded memory. Error (data) with file and line for a record of more
/// than 256 MiB and for an array that is not one.
class RecordReader {
 public:
  /// `file` outlives the reader, messages call it `name`. Reads about `block_bytes` at a time.
  RecordReader(const InputFile& file, std::string name, RecordForm form, int64_t block_bytes);

  bool next(std::string& record);  ///< false after the last record; blank lines are passed over
  int64_t line_number() const { return record_line_; }  ///< on which the last record begins, counted from 1
  int64_t consumed() const { return at_ - static_cast<int64_t>(buffer_.size() - buffer_at_); }  ///< bytes

 private:
  bool fill();
  int peek();  // next byte; -1 at the end of the file
  int peek_after_blanks();
  bool next_line(std::string& record);
  bool next_element(std::string& record);
  void take_element(std::string& record);
  [[noreturn]] void broken(const std::string& why) const;

  const InputFile& file_;
  std::string name_;
  RecordForm form_;
  int64_t block_bytes_;
  int64_t at_ = 0;  // bytes of the file that were read
  std::string buffer_;
  size_t buffer_at_ = 0;
  int64_t line_ = 1, record_line_ = 0;
  bool begun_ = false, ended_ = false;
};

/// Facts about the records of a file, by its content.
struct RecordSniff {
  RecordForm form = RecordForm::none;
  bool first_is_object = false;  ///< the first record is one JSON object
  bool has_key = false;          ///< the first object has the key
  bool more = false;             ///< there is a second object
  std::string keys;              ///< of the first object
  std::string why;               ///< form none: what the file begins with instead
};

/// Finds the form: lines where one of the first 100 lines is a whole JSON object and the first one begins
/// with {, array where the first element of one is an object.
RecordSniff sniff_records(const InputFile& file, const std::string& name, const std::string& key);

}  // namespace ltrain::data
