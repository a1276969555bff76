// Records of one file that another program wrote: Parquet, Arrow, TFRecord, tar and the like.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ltrain::records {

/// Fields to read from each record.
struct Selection {
  std::vector<std::string> fields;  ///< one, for text or tokens; with `as_json` several, or none for all
  /// The record as one JSON object of these fields. "a.b" selects the object a where no field is named so.
  bool as_json = false;
  const char* option = "--field, in a recipe: text";  ///< option that names the fields, for messages
};

struct Record {
  std::string text;             ///< UTF-8 text, or a JSON object with Selection::as_json
  std::vector<int32_t> tokens;  ///< ids, for a field that contains lists of integers
  bool has_tokens = false;      ///< `tokens` is the content, and not `text`
  bool null = false;            ///< the field is null or missing in this record
  std::string problem;          ///< reason why this record cannot be read, while the next one may be
};

/// Reads the records of one file in order, in bounded memory. Throws Error (data) with file and position.
class RecordSource {
 public:
  virtual ~RecordSource() = default;
  virtual bool next(Record& record) = 0;     ///< false after the last record
  virtual std::string position() const = 0;  ///< position of the last record: "row group 2, row 17"
  virtual int64_t consumed() const = 0;      ///< bytes of the file that were read so far, for progress
};

/// Longest record, in bytes.
constexpr int64_t kMaxRecordBytes = int64_t{256} << 20;

}  // namespace ltrain::records
