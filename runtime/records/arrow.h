// Records of Arrow IPC files.
#pragma once
#include <memory>
#include <string>

#include "runtime/files/file.h"
#include "runtime/records/fields.h"

namespace ltrain::records {

/// Records of an Arrow IPC file, in the stream format (also of Hugging Face's datasets) or the file format
/// (ARROW1). Memory is a window of each buffer of the selected fields; dictionaries and compressed buffers
/// are in memory whole. Positions count record batches and their rows from 0. `name`: name of the file in
/// messages.
std::unique_ptr<RecordSource> open_arrow(std::shared_ptr<const data::InputFile> file, std::string name,
                                         const Selection& selection);

/// Reads the headers of all record batches, to count rows.
FileSchema arrow_schema(std::shared_ptr<const data::InputFile> file, std::string name);

}  // namespace ltrain::records
