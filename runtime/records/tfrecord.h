// TFRecord files of tf.train.Example.
#pragma once
#include <memory>

#include "runtime/records/encodings/byte_stream.h"
#include "runtime/records/record_source.h"

namespace ltrain::records {

/// Returns whether the file begins with a length and its checksum.
bool is_tfrecord(std::string_view head);

/// Fields are the features of an Example: a bytes_list of one value is text, an int64_list is tokens. The
/// checksums of lengths and data are checked. An Example without the feature has Record::null.
std::unique_ptr<RecordSource> open_tfrecord(std::unique_ptr<ByteStream> stream, std::string name,
                                            const Selection& selection);

}  // namespace ltrain::records
