// The files that `data build` and `tokenizer train` read, how each is read, and what is left out.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/jsonl.h"
#include "runtime/data/record_file.h"
#include "runtime/files/file.h"

namespace ltrain::data {

struct TextFile {
  std::string path;  ///< as messages name it
  int64_t bytes = 0;
  RecordForm form = RecordForm::none;  ///< none: text, one document
  std::shared_ptr<InputFile> copied;   ///< of a pipe or standard input: a temporary copy without a name

  std::shared_ptr<InputFile> open() const { return copied ? copied : std::make_shared<InputFile>(path); }
};

struct NamedCount {
  int64_t count = 0;
  std::vector<std::string> first;  ///< names of the first kNamed ones
  static constexpr size_t kNamed = 3;

  void add(const std::string& name);
  std::string text(const std::string& what) const;  ///< "5 WHAT (a, b, c, ...)"
};

struct InputList {
  std::vector<TextFile> files;
  int64_t bytes = 0;
  NamedCount binary, compressed, empty, filtered, links, special, token_files, version_control;
  NamedCount json_as_text;  ///< read, as text: files of folders that are named .json and hold no records

  /// A phrase for each kind of file that was left out, such as "2 binary (a.png, b.png)".
  std::vector<std::string> left_out() const;
};

/// Files as given, `-` for standard input, and folders with everything below them in sorted order: hidden
/// files and linked folders too. Left out of folders, counted and named: what the globs leave out, empty,
/// binary (a NUL in the first 64 KiB) and compressed files, token files of an earlier build, version control
/// (.git, .hg, .svn), links that are broken or lead to what is read already, devices and sockets. Globs match
/// the name or the path below the folder; `exclude` also matches folders on the way. Error (data) for a file
/// that was named itself and cannot be read as `records` says.
InputList list_inputs(const std::vector<std::string>& inputs, const std::vector<std::string>& include,
                      const std::vector<std::string>& exclude, const RecordOptions& records = {});

}  // namespace ltrain::data
