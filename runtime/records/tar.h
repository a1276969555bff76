// Tar archives in the layout of WebDataset: files with the same path up to the first dot of their name form
// one sample, and the rest of the name is the field.
#pragma once
#include <memory>

#include "runtime/records/encodings/byte_stream.h"
#include "runtime/records/record_source.h"

namespace ltrain::records {

bool is_tar(std::string_view head);

/// Fields are the extensions of a sample's files, such as txt or cls. `json.KEY` is a key of a sample's
/// .json. A sample without the field has Record::null. ustar, GNU long names and pax headers are read. Links,
/// folders and devices are skipped. Nothing is unpacked to disk.
std::unique_ptr<RecordSource> open_tar(std::unique_ptr<ByteStream> stream, std::string name,
                                       const Selection& selection);

}  // namespace ltrain::records
