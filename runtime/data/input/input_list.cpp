#include "runtime/data/input/input_list.h"

#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "base/limits.h"
#include "base/printable.h"
#include "runtime/data/input/dataset_folder.h"
#include "runtime/data/input/input_form.h"
#include "runtime/data/input/temporary_copy.h"
#include "runtime/objects/object_list.h"

namespace fs = std::filesystem;

namespace ltrain::data {
namespace {

/// Endings of names of records. Objects are chosen by them before they are downloaded.
constexpr const char* kRecordNames[] = {".parquet", ".arrow", ".jsonl", ".ndjson", ".jl",       ".csv",
                                        ".tsv",     ".tar",   ".tgz",   ".mds",    ".tfrecord", ".bin"};
constexpr int64_t kMaxReadmeBytes = 4 << 20;

bool matches(const std::vector<std::string>& globs, const fs::path& below) {
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& g) {
    return ::fnmatch(g.c_str(), below.filename().c_str(), 0) == 0 ||
           ::fnmatch(g.c_str(), below.c_str(), 0) == 0;
  });
}

/// Returns whether `globs` match the path below the folder, or one of the folders on the way to it.
bool matches_on_the_way(const std::vector<std::string>& globs, const fs::path& below) {
  fs::path so_far;
  for (const fs::path& part : below)
    if (so_far /= part; matches(globs, so_far)) return true;
  return false;
}

/// Returns whether `p` is output of an earlier build among the inputs.
bool is_token_file(const fs::path& p) {
  const auto e = p.extension();
  if (e != ".json" && e != ".bin" && e != ".idx") return false;
  fs::path index = p, bin = p;
  return file_exists(index.replace_extension(".idx")) && file_exists(bin.replace_extension(".bin"));
}

bool is_version_control(const fs::path& p) {
  const fs::path name = p.filename();
  return name == ".git" || name == ".hg" || name == ".svn";
}

/// Lists everything below a folder. Links come last, so that a file keeps the path without a link.
class FolderWalk {
 public:
  explicit FolderWalk(InputList& list) : list_(list) {}

  std::vector<fs::path> operator()(const fs::path& folder) {
    folder_once(folder);
    for (size_t i = 0; i < links_.size(); ++i) follow(fs::path(links_[i]));
    std::sort(files_.begin(), files_.end(),
              [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
    return std::move(files_);
  }

 private:
  /// Returns false for a file that was seen before under another path.
  bool first_time(const fs::path& path) {
    struct stat st {};
    if (::stat(path.c_str(), &st) != 0)
      fail_system(path.string() + ": cannot be read", errno, ExitCode::data);
    return seen_.emplace(st.st_dev, st.st_ino).second;
  }

  void folder_once(const fs::path& folder) {
    if (!first_time(folder)) return list_.links.add(folder.string());
    std::error_code error;
    std::vector<fs::path> entries;
    fs::directory_iterator it(folder, error), end;
    for (; !error && it != end; it.increment(error)) entries.push_back(it->path());
    if (error) fail(ExitCode::data, "{}: the folder cannot be read: {}", folder.string(), error.message());
    std::sort(entries.begin(), entries.end());
    for (const fs::path& p : entries) take(p, fs::symlink_status(p, error));
  }

  void take(const fs::path& p, fs::file_status status) {
    if (is_version_control(p))
      list_.version_control.add(p.string());
    else if (fs::is_symlink(status))
      links_.push_back(p);
    else if (fs::is_directory(status))
      folder_once(p);
    else if (!fs::is_regular_file(status))
      list_.special.add(p.string());
    else {
      first_time(p);  // a second hard link counts as a separate file
      files_.push_back(p);
    }
  }

  void follow(const fs::path& link) {
    std::error_code error;
    const fs::file_status status = fs::status(link, error);
    if (fs::is_directory(status))
      folder_once(link);
    else if (!fs::exists(status) || (fs::is_regular_file(status) && !first_time(link)))
      list_.links.add(link.string());
    else if (fs::is_regular_file(status))
      files_.push_back(link);
    else
      list_.special.add(link.string());
  }

  InputList& list_;
  std::vector<fs::path> files_, links_;
  std::set<std::pair<dev_t, ino_t>> seen_;
};

/// Opens a file and finds its compression.
TextFile open_file(const std::string& name, std::shared_ptr<InputFile> file, bool copied) {
  std::string magic(4, '\0');
  magic.resize(static_cast<size_t>(file->read_some(magic.data(), 0, 4)));
  TextFile f;
  f.path = name;
  f.bytes = file->size();
  f.compression = records::compression_of(magic);
  if (copied) f.copied = std::move(file);
  return f;
}

/// Adds a file of a known form, or counts the reason why it is left out.
void add(TextFile f, const InputForm& form, InputList& list) {
  if (form.json_as_text) list.json_as_text.add(f.path);
  f.form = form.json_form;
  f.format = form.format;
  NamedCount* left_out = form.kind == InputForm::empty         ? &list.empty
                         : form.kind == InputForm::binary      ? &list.binary
                         : form.kind == InputForm::unsupported ? &list.compressed
                                                               : nullptr;
  left_out ? left_out->add(f.path) : list.files.push_back(std::move(f));
}

/// Adds files of a folder. Text beside record files describes the dataset and is left out, such as a
/// README.md or an index.json.
void add_found(std::vector<std::pair<TextFile, InputForm>> found, const RecordOptions& options,
               InputList& list) {
  const bool records = std::any_of(found.begin(), found.end(),
                                   [](const auto& f) { return f.second.kind == InputForm::records; });
  for (auto& [f, form] : found) {
    if (form.kind == InputForm::text && options.format != InputFormat::text) {
      const records::Source source = f.source();
      if (form.describes || (records && !named_as_lines(source))) {
        list.descriptions.add(f.path);
        continue;
      }
      form = json_or_text(source, false, options);
    }
    add(std::move(f), form, list);
  }
}

void list_folder(const fs::path& folder, const std::vector<std::string>& include,
                 const std::vector<std::string>& exclude, const RecordOptions& options, InputList& list) {
  DatasetFiles dataset = select_dataset(FolderWalk(list)(folder), folder, options.dataset);
  for (const fs::path& p : dataset.others) list.other_splits.add(p.string());
  std::vector<std::pair<TextFile, InputForm>> found;
  for (const fs::path& p : dataset.files) {
    const fs::path below = p.lexically_relative(folder);
    if ((!include.empty() && !matches(include, below)) || matches_on_the_way(exclude, below)) {
      list.filtered.add(p.string());
    } else if (is_token_file(p)) {
      list.token_files.add(p.string());
    } else {
      TextFile f = open_file(p.string(), std::make_shared<InputFile>(p.string()), false);
      const InputForm form = form_by_head(f.source(), options);
      found.emplace_back(std::move(f), form);
    }
  }
  add_found(std::move(found), options, list);
}

/// Form of a file that is named explicitly.
InputForm form_of_named(const TextFile& f, const RecordOptions& options) {
  InputForm form = form_by_head(f.source(), options);
  if (form.kind == InputForm::binary || form.kind == InputForm::unsupported)
    fail(ExitCode::data, "{}: {}", f.path, form.why);
  if (form.kind == InputForm::text && options.format != InputFormat::text)
    form = json_or_text(f.source(), true, options);
  return form;
}

void list_file(const std::string& input, const std::string& name, bool regular, const RecordOptions& options,
               InputList& list) {
  auto file = regular ? std::make_shared<InputFile>(input) : copy_stream(input, name);
  TextFile f = open_file(name, std::move(file), !regular);
  const InputForm form = form_of_named(f, options);
  add(std::move(f), form, list);
}

/// Returns whether a name is one of records, and not of text that may describe them.
bool named_as_records(const fs::path& path) {
  fs::path name = path.filename();
  for (const char* end : {".gz", ".zst", ".zstd"})
    if (name.extension() == end) name = name.stem();
  const std::string e = name.extension().string();
  return std::any_of(std::begin(kRecordNames), std::end(kRecordNames), [&](const char* n) { return e == n; });
}

void add_object(const objects::Object& object, InputList& list) {
  TextFile f;
  f.path = object.name();
  f.bytes = object.size;
  f.object = std::make_shared<objects::Object>(object);
  if (f.bytes == 0) return list.empty.add(f.path);
  list.files.push_back(std::move(f));
}

/// README.md of a folder in a bucket; empty: none.
std::string remote_readme(const objects::ObjectList& found, const objects::Url& folder,
                          objects::ObjectStore& store) {
  std::string key = folder.path;
  if (!key.empty() && key.back() != '/') key += '/';
  for (const objects::Object& o : found.objects)
    if (o.url.path == key + "README.md") return store.read(o, kMaxReadmeBytes);
  return "";
}

void list_url(const std::string& input, const std::vector<std::string>& include,
              const std::vector<std::string>& exclude, const RecordOptions& options, InputList& list) {
  const objects::Url url = objects::parse_url(input);
  objects::ObjectStore store(url);
  const objects::ObjectList found = objects::list_objects(url, store);
  if (!found.is_folder) {
    for (const objects::Object& o : found.objects) add_object(o, list);
    return;
  }
  // Keys as paths: the rules of local folders then hold for them.
  const fs::path folder = fs::path("/" + url.path).lexically_normal();
  std::map<fs::path, const objects::Object*> by_path;
  std::vector<fs::path> paths;
  for (const objects::Object& o : found.objects)
    if (const fs::path p = fs::path("/" + o.url.path).lexically_normal(); by_path.emplace(p, &o).second)
      paths.push_back(p);
  DatasetFiles dataset =
      select_dataset(std::move(paths), folder, options.dataset, remote_readme(found, url, store));
  for (const fs::path& p : dataset.others) list.other_splits.add(by_path[p]->name());
  // A .json beside other records is an index or a description.
  const auto any = [&](auto holds) {
    return options.format != InputFormat::text &&
           std::any_of(dataset.files.begin(), dataset.files.end(), holds);
  };
  const auto named_as_json = [](const fs::path& p) { return p.extension() == ".json"; };
  const bool records = any(named_as_records), json = !records && any(named_as_json);
  for (const fs::path& p : dataset.files) {
    const objects::Object& o = *by_path[p];
    const fs::path below = p.lexically_relative(folder);
    fs::path index = p, bin = p;
    const bool is_tokens =
        by_path.contains(index.replace_extension(".idx")) && by_path.contains(bin.replace_extension(".bin"));
    if ((!include.empty() && !matches(include, below)) || matches_on_the_way(exclude, below))
      list.filtered.add(o.name());
    else if (is_tokens)
      list.token_files.add(o.name());
    else if ((records && !named_as_records(p)) || (json && !named_as_json(p)))
      list.descriptions.add(o.name());
    else
      add_object(o, list);
  }
}

}  // namespace

void NamedCount::add(const std::string& name) {
  if (count++ < static_cast<int64_t>(kNamed)) first.push_back(name);
}

std::string NamedCount::text(const std::string& what) const {
  std::string names;
  for (const std::string& name : first) names += (names.empty() ? "" : ", ") + printable(name, 200);
  if (count > static_cast<int64_t>(first.size())) names += ", ...";
  return fmt::format("{} {} ({})", count, what, names);
}

std::vector<std::string> InputList::left_out() const {
  std::vector<std::string> phrases;
  if (filtered.count > 0) phrases.push_back(fmt::format("{} by --include and --exclude", filtered.count));
  for (const auto& [what, counted] : std::initializer_list<std::pair<const char*, const NamedCount*>>{
           {"binary", &binary},
           {"compressed by programs other than gzip and zstd", &compressed},
           {"of other splits or configurations", &other_splits},
           {"text beside record files", &descriptions},
           {"empty", &empty},
           {"links that are broken or lead to what is read already", &links},
           {"devices, pipes and sockets", &special},
           {"token files of an earlier build", &token_files},
           {"of version control", &version_control}})
    if (counted->count > 0) phrases.push_back(counted->text(what));
  return phrases;
}

TextFile resolved(const TextFile& file, const RecordOptions& records) {
  if (!file.object || file.copied) return file;
  TextFile f = open_file(file.path, objects::open_object(*file.object, records.objects), true);
  f.object = file.object;
  const InputForm form = form_of_named(f, records);
  f.form = form.json_form;
  f.format = form.format;
  return f;
}

InputList list_inputs(const std::vector<std::string>& inputs, const std::vector<std::string>& include,
                      const std::vector<std::string>& exclude, const RecordOptions& records) {
  InputList list;
  for (const std::string& input : inputs) {
    if (input == "-") {
      list_file(input, "standard input", false, records, list);
      continue;
    }
    if (objects::is_url(input)) {
      list_url(input, include, exclude, records, list);
      continue;
    }
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    if (!fs::exists(status))
      fail(ExitCode::data, "{}: not found{}", input,
           input.find("://") == input.npos
               ? ""
               : "; URLs that are read begin with s3://, gs://, https:// or http://");
    if (!fs::is_directory(status) && !fs::is_regular_file(status) && !fs::is_fifo(status))
      fail(
          ExitCode::data,
          "{}: a device or socket, which may have no end: expected a file, a folder or a pipe; - is standard "
          "input",
          input);
    if (fs::is_directory(status))
      list_folder(input, include, exclude, records, list);
    else
      list_file(input, input, fs::is_regular_file(status), records, list);
  }
  for (const TextFile& f : list.files) list.bytes += f.bytes;
  if (!list.files.empty()) return list;
  std::string out;
  for (const std::string& phrase : list.left_out()) out += (out.empty() ? "; left out: " : ", ") + phrase;
  fail(ExitCode::data, "no text in the inputs{}", out);
}

}  // namespace ltrain::data
