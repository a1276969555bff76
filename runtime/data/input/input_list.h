// Input files of `data build` and `tokenizer train`: how each is read, and which are skipped.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/input/jsonl.h"
#include "runtime/data/input/record_file.h"
#include "runtime/files/file.h"
#include "runtime/records/format.h"

namespace ltrain::data {

struct TextFile {
  std::string path;  ///< name in messages
  int64_t bytes = 0;
  RecordForm form = RecordForm::none;       ///< none and no format: text, one document
  const records::Format* format = nullptr;  ///< format of records other than JSON
  records::Compression compression = records::Compression::none;
  /// For a pipe or standard input: an unnamed temporary copy. For an object: its local copy, once resolved.
  std::shared_ptr<InputFile> copied;
  /// An object behind a URL, whose form is known once it is resolved.
  std::shared_ptr<const objects::Object> object;

  std::shared_ptr<InputFile> open() const { return copied ? copied : std::make_shared<InputFile>(path); }
  records::Source source() const { return {open(), path, compression}; }
};

struct NamedCount {
  int64_t count = 0;
  std::vector<std::string> first;  ///< names of the first kNamed files
  static constexpr size_t kNamed = 3;

  void add(const std::string& name);
  std::string text(const std::string& what) const;  ///< "5 WHAT (a, b, c, ...)"
};

struct InputList {
  std::vector<TextFile> files;
  int64_t bytes = 0;
  NamedCount binary, compressed, empty, filtered, links, special, token_files, version_control;
  NamedCount other_splits, descriptions;
  /// Files in folders that are named .json but contain no records, and are read as text.
  NamedCount json_as_text;

  /// One phrase per kind of skipped file, such as "2 binary (a.png, b.png)".
  std::vector<std::string> left_out() const;
};

/// Lists the given files, `-` for standard input, and folders with everything below them in sorted order,
/// including hidden files and linked folders. Skipped in folders, counted and named: files excluded by the
/// globs, empty files, binary files of no known format, files compressed by other programs than gzip and
/// zstd, token files of an earlier build, version control (.git, .hg, .svn), links that are broken or lead to
/// files already listed, devices and sockets, files of other splits of a dataset, and text beside record
/// files. Globs match the name or the path below the folder. `exclude` also matches folders on the path.
/// Throws Error (data) for an explicitly named file that cannot be read as requested in `records`.
///
/// Inputs that are URLs (runtime/objects/url.h) are listed without a download. Objects below a URL are chosen
/// by their names: beside objects named as records, those named as text are left out.
InputList list_inputs(const std::vector<std::string>& inputs, const std::vector<std::string>& include,
                      const std::vector<std::string>& exclude, const RecordOptions& records = {});

/// The file as it is read: an object is downloaded and gets its form, another file stays as it is. Throws
/// Error (data) for an object of no form that is read.
TextFile resolved(const TextFile& file, const RecordOptions& records);

}  // namespace ltrain::data
