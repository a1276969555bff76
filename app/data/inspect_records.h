// `ltrain data inspect` of text and record files.
#pragma once
#include <string>

#include "runtime/data/input/input_list.h"

namespace ltrain::app {

struct InspectRecordsOptions {
  std::string path;
  data::RecordOptions records;
  int64_t show = 3;           ///< records to print
  int64_t shown_bytes = 200;  ///< bytes printed of a record
  bool all = false;           ///< read all records, and not only the first 10,000
  bool json = false;
};

/// Prints the format, the fields, the lengths and the first records of a file, or of the first file of each
/// format in a folder.
void inspect_records(const InspectRecordsOptions& options);

}  // namespace ltrain::app
