// Shards of MosaicML's streaming datasets (MDS).
#pragma once
#include <memory>

#include "runtime/records/encodings/byte_stream.h"
#include "runtime/records/record_source.h"

namespace ltrain::records {

bool is_mds(std::string_view head);

/// Fields are the columns of the shard: str, bytes and json are text, arrays of integers are tokens. pkl,
/// which would run code, and images are refused.
std::unique_ptr<RecordSource> open_mds(std::unique_ptr<ByteStream> stream, std::string name,
                                       const Selection& selection);

}  // namespace ltrain::records
