#include "runtime/data/input_list.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/limits.h"
#include "base/printable.h"

namespace fs = std::filesystem;

namespace ltrain::data {
namespace {

constexpr int64_t kSniffBytes = 1 << 16;

/// First bytes of compressed files, and the program that decompresses them.
struct Magic {
  std::string_view bytes;
  const char *kind, *reader;
};
constexpr Magic kCompressed[] = {
    {"\x1F\x8B", "gzip", "gzip -dc"},
    {"\x28\xB5\x2F\xFD", "zstd", "zstd -dc"},
    {"\xFD"
     "7zXZ",
     "xz", "xz -dc"},
    {"BZh9", "bzip2", "bzip2 -dc"},
    {"PK\x03\x04", "zip", "unzip -p"},
};

const Magic* compressed(std::string_view head) {
  for (const Magic& m : kCompressed)
    if (head.starts_with(m.bytes)) return &m;
  return nullptr;
}

std::string beginning(const InputFile& file) {
  std::string head(static_cast<size_t>(std::min(file.size(), kSniffBytes)), '\0');
  head.resize(static_cast<size_t>(file.read_some(head.data(), 0, static_cast<int64_t>(head.size()))));
  return head;
}

std::string extension(const fs::path& path) {
  std::string e = path.extension().string();
  for (char& c : e) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return e;
}

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

/// Copies a pipe, a terminal or standard input to an unnamed file, because inputs are read at any offset.
std::shared_ptr<InputFile> copy_stream(const std::string& path, const std::string& name) {
  const char* folder = std::getenv("TMPDIR");
  std::string copy = std::string(folder && *folder ? folder : "/tmp") + "/ltrain-input-XXXXXX";
  const int to = ::mkostemp(copy.data(), O_CLOEXEC);
  if (to < 0) fail_system(copy + ": cannot be created for a copy of " + name, errno, ExitCode::storage);
  ::unlink(copy.c_str());
  const int from = path == "-" ? 0 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (from < 0) {
    ::close(to);
    fail_system(path + ": cannot be opened", errno, ExitCode::data);
  }
  std::vector<char> block(1 << 20);
  int error = 0;
  bool writing = false;
  for (ssize_t n; error == 0 && (n = ::read(from, block.data(), block.size())) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) error = errno;
    for (ssize_t done = 0; error == 0 && done < n;) {
      const ssize_t m = ::write(to, block.data() + done, static_cast<size_t>(n - done));
      if (m >= 0) done += m;
      if (m < 0 && errno != EINTR) error = errno, writing = true;
    }
  }
  if (from != 0) ::close(from);
  std::shared_ptr<InputFile> file;
  if (error == 0) file = std::make_shared<InputFile>(fmt::format("/proc/self/fd/{}", to));
  ::close(to);
  if (error && writing)
    fail_system(copy + ": a copy of " + name + " cannot be written; set TMPDIR to a folder with room", error,
                ExitCode::storage);
  if (error) fail_system(name + ": cannot be read", error, ExitCode::data);
  return file;
}

constexpr const char* kReadAsText = "--input-format text reads it as text, whatever it holds";

/// Form in which the file is read. Throws Error (data) if it has no form that `options` allows. `given`:
/// named explicitly, not found in a folder.
RecordForm form_of(const InputFile& file, const std::string& path, bool given, const RecordOptions& options,
                   InputList& list) {
  if (options.format == InputFormat::text) return RecordForm::none;
  const std::string name = extension(path), key = options.key();
  const bool named_lines = name == ".jsonl" || name == ".ndjson" || name == ".jl",
             named_json = name == ".json";
  const RecordSniff sniff = sniff_records(file, path, key);
  // A broken first line of a file named as JSONL is an error of that line.
  if (named_lines) return sniff.form == RecordForm::array ? RecordForm::array : RecordForm::lines;
  if (options.must_be_json()) {
    if (sniff.form != RecordForm::none) return sniff.form;
    fail(ExitCode::data,
         "{}: {} says that inputs hold JSON records, an object a line or one array of objects, but {}. Leave "
         "the file out{}, or build it apart",
         path, options.json_key ? "--json-key " + printable(key, 60) : "--input-format json", sniff.why,
         given ? "" : " with --exclude");
  }
  if (sniff.form == RecordForm::none) {
    if (given && named_json)
      fail(ExitCode::data,
           "{}: a .json file holds one JSON object a line (JSONL) or one array of objects, but {}. {}", path,
           sniff.why, kReadAsText);
    if (named_json) list.json_as_text.add(path);
    return RecordForm::none;
  }
  if (!sniff.first_is_object && !named_json) return RecordForm::none;
  if (sniff.has_key) return sniff.form;
  if (given || sniff.more)
    fail(
        ExitCode::data,
        "{}: holds JSON records without the key \"{}\"; the first one has: {}. Name the key of the text with "
        "--json-key; {}{}",
        path, key, sniff.keys.empty() ? "no key" : sniff.keys, kReadAsText,
        given ? "" : "; --exclude leaves it out");
  // A single object in a folder is one document, for example settings of a program.
  if (named_json) list.json_as_text.add(path);
  return RecordForm::none;
}

void list_folder(const fs::path& folder, const std::vector<std::string>& include,
                 const std::vector<std::string>& exclude, const RecordOptions& records, InputList& list) {
  for (const fs::path& p : FolderWalk(list)(folder)) {
    const fs::path below = p.lexically_relative(folder);
    if ((!include.empty() && !matches(include, below)) || matches_on_the_way(exclude, below)) {
      list.filtered.add(p.string());
      continue;
    }
    const InputFile file(p.string());
    const std::string head = beginning(file);
    if (is_token_file(p))
      list.token_files.add(p.string());
    else if (compressed(head))
      list.compressed.add(p.string());
    else if (head.find('\0') != head.npos)
      list.binary.add(p.string());
    else if (head.empty())
      list.empty.add(p.string());
    else
      list.files.push_back(
          {p.string(), file.size(), form_of(file, p.string(), false, records, list), nullptr});
  }
}

void list_file(const std::string& input, const std::string& name, bool regular, const RecordOptions& records,
               InputList& list) {
  const auto file = regular ? std::make_shared<InputFile>(input) : copy_stream(input, name);
  const std::string head = beginning(*file);
  if (head.empty()) return list.empty.add(name);
  if (const Magic* m = compressed(head))
    fail(ExitCode::data, "{}: compressed by {}. Inputs are text or JSON: {} {} | ltrain data build --input -",
         name, m->kind, m->reader, regular ? name : "FILE");
  if (const size_t nul = head.find('\0'); nul != head.npos)
    fail(ExitCode::data,
         "{}: byte offset {}: a NUL: not a text file. Inputs are text or JSONL, not compressed", name, nul);
  list.files.push_back(
      {name, file->size(), form_of(*file, name, true, records, list), regular ? nullptr : file});
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
           {"compressed", &compressed},
           {"empty", &empty},
           {"links that are broken or lead to what is read already", &links},
           {"devices, pipes and sockets", &special},
           {"token files of an earlier build", &token_files},
           {"of version control", &version_control}})
    if (counted->count > 0) phrases.push_back(counted->text(what));
  return phrases;
}

InputList list_inputs(const std::vector<std::string>& inputs, const std::vector<std::string>& include,
                      const std::vector<std::string>& exclude, const RecordOptions& records) {
  InputList list;
  for (const std::string& input : inputs) {
    if (input == "-") {
      list_file(input, "standard input", false, records, list);
      continue;
    }
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    if (!fs::exists(status)) fail(ExitCode::data, "{}: not found", input);
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
