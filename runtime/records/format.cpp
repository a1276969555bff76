#include "runtime/records/format.h"

#include "base/error.h"
#include "runtime/records/arrow.h"
#include "runtime/records/csv.h"
#include "runtime/records/mds.h"
#include "runtime/records/parquet.h"
#include "runtime/records/tar.h"
#include "runtime/records/tfrecord.h"
#include "runtime/records/token_file.h"

namespace ltrain::records {
namespace {

std::unique_ptr<ByteStream> stream_of(const Source& s) { return open_stream(s.file, s.name, s.compression); }

/// Opens a format that is read from its begin to its end.
template <auto open>
std::unique_ptr<RecordSource> streamed(const Source& source, const Selection& selection) {
  return open(stream_of(source), source.name, selection);
}

/// Opens a format that is read at any offset.
template <auto open>
std::unique_ptr<RecordSource> at_any_offset(const Source& source, const Selection& selection) {
  if (source.compression != Compression::none)
    fail(ExitCode::data,
         "{}: the whole file is compressed, and its format is read at any offset: decompress it first",
         source.name);
  return open(source.file, source.name, selection);
}

template <char separator>
std::unique_ptr<RecordSource> separated(const Source& source, const Selection& selection) {
  return open_csv(stream_of(source), source.name, separator, selection);
}

}  // namespace

const std::vector<Format>& formats() {
  static const std::vector<Format> table{
      {"parquet", "text", &is_parquet, nullptr, &at_any_offset<&open_parquet>},
      {"arrow", "text", &is_arrow, nullptr, &at_any_offset<&open_arrow>},
      {"tar", "txt", &is_tar, nullptr, &streamed<&open_tar>},
      {"tfrecord", "text", &is_tfrecord, nullptr, &streamed<&open_tfrecord>},
      {"mds", "text", &is_mds, nullptr, &streamed<&open_mds>},
      {"llmc", "tokens", &is_llmc, nullptr, &streamed<&open_llmc>},
      {"nanogpt", "tokens", nullptr, nullptr, &streamed<&open_nanogpt>},
      {"csv", "text", nullptr, ".csv", &separated<','>},
      {"tsv", "text", nullptr, ".tsv", &separated<'\t'>},
  };
  return table;
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
