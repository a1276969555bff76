// Records of Parquet files.
#pragma once
#include <memory>
#include <string>

#include "runtime/files/file.h"
#include "runtime/records/fields.h"

namespace ltrain::records {

/// Records of a Parquet file. Reads row groups page by page: memory is one page and the dictionary of each
/// selected column. Positions count row groups and their rows from 0. `name`: name of the file in messages.
std::unique_ptr<RecordSource> open_parquet(std::shared_ptr<const data::InputFile> file, std::string name,
                                           const Selection& selection);

FileSchema parquet_schema(std::shared_ptr<const data::InputFile> file, std::string name);

}  // namespace ltrain::records
