#include "runtime/data/input/input_form.h"

#include <cctype>
#include <filesystem>

#include "base/error.h"
#include "base/printable.h"

namespace ltrain::data {
namespace {

constexpr int64_t kSniffBytes = 1 << 16;
constexpr const char* kReadAsText = "--input-format text reads it as text, whatever it holds";

/// First bytes of compressed files that are not read, and the program that decompresses them.
struct Magic {
  std::string_view bytes;
  const char *kind, *reader;
};
constexpr Magic kUnsupported[] = {
    {"\xFD"
     "7zXZ",
     "xz", "xz -dc"},
    {"BZh9", "bzip2", "bzip2 -dc"},
    {"PK\x03\x04", "zip", "unzip -p"},
};

/// The name in lower case, without the ending of its compression.
std::string plain_name(const records::Source& source) {
  std::string name = source.name;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (source.compression != records::Compression::none)
    for (const char* end : {".gz", ".zst", ".zstd"})
      if (name.ends_with(end)) {
        name.resize(name.size() - std::string_view(end).size());
        break;
      }
  return name;
}

/// Returns whether a README.md begins with settings of a dataset, as on the Hugging Face hub.
bool describes_dataset(std::string_view head, const std::string& path) {
  if (std::filesystem::path(path).filename() != "README.md" || !head.starts_with("---")) return false;
  const std::string_view front = head.substr(0, head.find("\n---", 3));
  return front.find("\ndataset_info:") != front.npos || front.find("\nconfigs:") != front.npos;
}

std::string extension(const records::Source& source) {
  return std::filesystem::path(plain_name(source)).extension().string();
}

}  // namespace

bool named_as_lines(const records::Source& source) {
  const std::string name = extension(source);
  return name == ".jsonl" || name == ".ndjson" || name == ".jl";
}

InputForm json_or_text(const records::Source& source, bool given, const RecordOptions& options) {
  const std::string &path = source.name, key = options.key();
  const bool named_json = extension(source) == ".json";
  const RecordSniff sniff = sniff_records(source, key);
  const auto json = [](RecordForm form) { return InputForm{.kind = InputForm::json, .json_form = form}; };
  const InputForm text{.json_as_text = named_json};
  // A broken first line of a file named as JSONL is an error of that line.
  if (named_as_lines(source))
    return json(sniff.form == RecordForm::array ? RecordForm::array : RecordForm::lines);
  if (options.must_be_records()) {
    if (sniff.form != RecordForm::none) return json(sniff.form);
    fail(ExitCode::data,
         "{}: {} says that inputs hold records, for JSON an object a line or one array of objects, but {}. "
         "Leave "
         "the file out{}, or build it apart",
         path,
         options.whole           ? "--chat"
         : options.field         ? "--field " + printable(*options.field, 60)
         : options.where.empty() ? "--input-format json"
                                 : "where (or --where)",
         sniff.why, given ? "" : " with --exclude");
  }
  if (sniff.form == RecordForm::none) {
    if (given && named_json)
      fail(ExitCode::data,
           "{}: a .json file holds one JSON object a line (JSONL) or one array of objects, but {}. {}", path,
           sniff.why, kReadAsText);
    return text;
  }
  if (!sniff.first_is_object && !named_json) return text;
  if (sniff.has_key) return json(sniff.form);
  if (given || sniff.more)
    fail(
        ExitCode::data,
        "{}: holds JSON records without the key \"{}\"; the first one has: {}. Name the key of the text with "
        "--field; {}{}",
        path, key, sniff.keys.empty() ? "no key" : sniff.keys, kReadAsText,
        given ? "" : "; --exclude leaves it out");
  // A single object in a folder is one document, for example settings of a program.
  return text;
}

InputForm form_by_head(const records::Source& source, const RecordOptions& options) {
  const std::string head = records::beginning(source.file, source.name, source.compression, kSniffBytes);
  if (head.empty()) return {.kind = InputForm::empty};
  for (const Magic& m : kUnsupported)
    if (head.starts_with(m.bytes))
      return {
          .kind = InputForm::unsupported,
          .why = fmt::format("compressed by {}; gzip and zstd are read. For this one: {} {} | ltrain data "
                             "build --input -",
                             m.kind, m.reader, source.name)};
  if (options.format != InputFormat::text) {
    const records::Format* format = options.record_format;
    if (!format) format = records::recognise(head, plain_name(source));
    if (format) return {.kind = InputForm::records, .format = format};
  }
  if (const size_t nul = head.find('\0'); nul != head.npos)
    return {.kind = InputForm::binary,
            .why = fmt::format("byte offset {}: a NUL: neither text nor a format that is read", nul)};
  return {.describes = describes_dataset(head, source.name)};
}

}  // namespace ltrain::data
