// CSV and TSV with a header line (RFC 4180).
#pragma once
#include <memory>

#include "runtime/records/encodings/byte_stream.h"
#include "runtime/records/record_source.h"

namespace ltrain::records {

/// Fields are the columns of the first line. A quoted field may contain separators, line ends and doubled
/// quotes. A row with another number of columns is a Record::problem.
std::unique_ptr<RecordSource> open_csv(std::unique_ptr<ByteStream> stream, std::string name, char separator,
                                       const Selection& selection);

}  // namespace ltrain::records
