// `ltrain data inspect` of text and record files.
#pragma once
#include <string>

#include "runtime/data/input/input_list.h"
#include "runtime/tokenizer/tokenizer.h"

namespace ltrain::app {

struct InspectRecordsOptions {
  std::string path;
  data::RecordOptions records;
  data::Tokenizer* tokenizer = nullptr;  ///< lengths of text are in its tokens; null: in bytes
  int64_t show = 3;                      ///< records to print
  int64_t shown_bytes = 200;             ///< bytes printed of a record
  bool all = false;                      ///< read all records, and not only the first 10,000
  bool tokens = false;                   ///< print the tokens of these records' texts; needs `tokenizer`
  bool json = false;
};

/// Prints the format, the fields, the lengths and the first records of a file, or of the first file of each
/// format in a folder.
void inspect_records(const InspectRecordsOptions& options);

}  // namespace ltrain::app
