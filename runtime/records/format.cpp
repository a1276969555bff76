#include "runtime/records/format.h"

#include "base/error.h"

/// All formats, in the order in which files are recognised. NAME_format() is in the file of the format.
#define LT_RECORD_FORMATS(format)                                                                     \
  format(parquet) format(arrow) format(tar) format(tfrecord) format(mds) format(llmc) format(nanogpt) \
      format(csv) format(tsv)

namespace ltrain::records {

#define LT_DECLARE_FORMAT(name) Format name##_format();
LT_RECORD_FORMATS(LT_DECLARE_FORMAT)
#undef LT_DECLARE_FORMAT

const std::vector<Format>& formats() {
#define LT_FORMAT(name) name##_format(),
  static const std::vector<Format> table{LT_RECORD_FORMATS(LT_FORMAT)};
#undef LT_FORMAT
  return table;
}

void check_any_offset(const Source& source) {
  if (source.compression != Compression::none)
    fail(ExitCode::data,
         "{}: the whole file is compressed, and its format is read at any offset: decompress it first",
         source.name);
}

const Format* recognise(std::string_view head, const std::string& path) {
  for (const Format& f : formats())
    if ((f.recognise && f.recognise(head)) || (f.extension && path.ends_with(f.extension))) return &f;
  return nullptr;
}

const Format* format_named(std::string_view name) {
  for (const Format& f : formats())
    if (name == f.name) return &f;
  return nullptr;
}

}  // namespace ltrain::records
