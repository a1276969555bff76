#include "runtime/data/text_input.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "kernels/base/error.h"

namespace fs = std::filesystem;

namespace ltrain::data {
namespace {

constexpr int64_t kSniffBytes = 1 << 16;
constexpr int64_t kMaxLine = int64_t{256} << 20;
constexpr int64_t kMaxPiece = int64_t{16} << 20;  // a text without any safe cut is cut here all the same

bool is_jsonl(const fs::path& p) { return p.extension() == ".jsonl" || p.extension() == ".ndjson"; }

/// Byte offset of the first NUL of the file's beginning; -1 if there is none.
int64_t find_nul(const std::string& path) {
  InputFile file(path);
  std::string head(std::min(file.size(), kSniffBytes), '\0');
  const int64_t n = file.read_some(head.data(), 0, static_cast<int64_t>(head.size()));
  const void* nul = std::memchr(head.data(), 0, n);
  return nul ? static_cast<const char*>(nul) - head.data() : -1;
}

bool matches(const std::vector<std::string>& globs, const fs::path& below) {
  for (const std::string& g : globs)
    if (::fnmatch(g.c_str(), below.filename().c_str(), 0) == 0 || ::fnmatch(g.c_str(), below.c_str(), 0) == 0)
      return true;
  return false;
}

bool skipped_folder(const std::string& name) {
  return name.starts_with(".") || name == "build" || name.starts_with("build-") ||
         name.starts_with("cmake-build") || name == "node_modules" || name == "__pycache__";
}

/// Output of an earlier build that lies among the inputs.
bool is_token_file(const fs::path& p) {
  const auto e = p.extension();
  if (e != ".json" && e != ".bin" && e != ".idx") return false;
  fs::path index = p, bin = p;
  return file_exists(index.replace_extension(".idx")) && file_exists(bin.replace_extension(".bin"));
}

void list_folder(const fs::path& folder, const std::vector<std::string>& include,
                 const std::vector<std::string>& exclude, InputList& list) {
  std::vector<fs::path> paths;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error), end;
  for (; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (it->is_directory(ignored)) {
      if (skipped_folder(name) || it->is_symlink(ignored)) it.disable_recursion_pending();
      continue;
    }
    if (name.starts_with(".") || !it->is_regular_file(ignored)) continue;
    paths.push_back(it->path());
  }
  if (error) fail(ExitCode::data, "{}: the folder cannot be read: {}", folder.string(), error.message());
  std::sort(paths.begin(), paths.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  for (const fs::path& p : paths) {
    const fs::path below = p.lexically_relative(folder);
    if ((!include.empty() && !matches(include, below)) || matches(exclude, below) || is_token_file(p)) {
      ++list.filtered;
    } else if (find_nul(p.string()) >= 0) {
      ++list.binary;
    } else {
      list.files.push_back({p.string(), static_cast<int64_t>(fs::file_size(p)), is_jsonl(p)});
    }
  }
}

}  // namespace

InputList list_inputs(const std::vector<std::string>& inputs, const std::vector<std::string>& include,
                      const std::vector<std::string>& exclude) {
  InputList list;
  for (const std::string& input : inputs) {
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    if (!fs::exists(status)) fail(ExitCode::data, "{}: not found", input);
    if (fs::is_directory(status)) {
      list_folder(input, include, exclude, list);
      continue;
    }
    if (const int64_t nul = find_nul(input); nul >= 0)
      fail(ExitCode::data,
           "{}: byte offset {}: a NUL: not a text file. Inputs are text or JSONL, not compressed", input,
           nul);
    list.files.push_back({input, InputFile(input).size(), is_jsonl(input)});
  }
  std::erase_if(list.files, [&](const TextFile& f) {
    list.empty += f.bytes == 0;
    return f.bytes == 0;
  });
  for (const TextFile& f : list.files) list.bytes += f.bytes;
  if (list.files.empty())
    fail(ExitCode::data,
         "no text in the inputs: of the files found, {} are binary, {} are empty, {} are left out by "
         "--include and --exclude",
         list.binary, list.empty, list.filtered);
  return list;
}

int64_t cut_in_window(std::string_view window) {
  const size_t line = window.rfind('\n');
  if (line != std::string_view::npos) return static_cast<int64_t>(line) + 1;
  // Back to the lead byte of the last character, which stays out if it is not whole.
  for (size_t back = 1; back <= 4 && back < window.size(); ++back) {
    const auto c = static_cast<unsigned char>(window[window.size() - back]);
    if ((c & 0xC0) == 0x80) continue;
    const size_t bytes = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
    return static_cast<int64_t>(bytes > back ? window.size() - back : window.size());
  }
  return static_cast<int64_t>(window.size());
}

void too_short_to_cut(const std::string& name, int64_t size, size_t parts) {
  fail(ExitCode::data,
       "{}: the only document, {} bytes: too short to be cut into {} parts; leave out --split or add text",
       name, size, parts);
}

ChunkReader::ChunkReader(const InputList& list, const Tokenizer& tokenizer, int64_t chunk_bytes,
                         std::vector<double> shares)
    : list_(list), tokenizer_(tokenizer.clone()), chunk_bytes_(chunk_bytes), shares_(std::move(shares)) {}

void ChunkReader::open_next() {
  const TextFile& f = list_.files[file_];
  open_ = std::make_unique<InputFile>(f.path);
  at_ = line_ = 0;
  buffer_.clear();
  buffer_at_ = cut_ = 0;
  cuts_.clear();
  only_record_ = false;
  if (shares_.size() < 2 || list_.files.size() > 1) return;
  if (!f.jsonl) {
    cuts_ = cut_points(open_->size(), shares_, f.path, [&](int64_t begin, int64_t end) {
      std::string window(end - begin, '\0');
      open_->read(window.data(), begin, end - begin);
      return window;
    });
    return;
  }
  std::string line;
  int records = 0;
  while (records < 2 && next_line(line)) ++records;
  only_record_ = records == 1;
  at_ = line_ = 0;
  buffer_.clear();
  buffer_at_ = 0;
}

bool ChunkReader::fill() {
  const int64_t want =
      std::clamp<int64_t>(open_->size() - at_ + 1, 4096, std::max<int64_t>(chunk_bytes_, 4096));
  const size_t old = buffer_.size();
  buffer_.resize(old + want);
  const int64_t n = open_->read_some(buffer_.data() + old, at_, want);
  buffer_.resize(old + n);
  at_ += n;
  return n > 0;
}

/// The next line that is not blank, without its end.
bool ChunkReader::next_line(std::string& line) {
  for (size_t searched = 0;;) {
    const size_t end = buffer_.find('\n', buffer_at_ + searched);
    if (end == std::string::npos) {
      buffer_.erase(0, buffer_at_);
      buffer_at_ = 0;
      searched = buffer_.size();
      if (static_cast<int64_t>(searched) > kMaxLine)
        fail(ExitCode::data, "{}:{}: a line of more than {} MiB; a JSONL record is one line of at most that",
             open_->path(), line_ + 1, kMaxLine >> 20);
      if (fill()) continue;
      if (buffer_.empty()) return false;
      line.swap(buffer_);
      buffer_.clear();
    } else {
      line.assign(buffer_, buffer_at_, end - buffer_at_);
      buffer_at_ = end + 1;
    }
    searched = 0;
    ++line_;
    if (line_ == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
    if (line.find_first_not_of(" \t\r") != std::string::npos) return true;
  }
}

/// Adds records to the chunk until it is full; false at the end of the file.
bool ChunkReader::read_lines(Chunk& chunk) {
  std::string line;
  while (static_cast<int64_t>(chunk.text.size()) < chunk_bytes_) {
    if (!next_line(line)) return false;
    Piece piece;
    piece.kind = Piece::json;
    piece.begin = static_cast<int64_t>(chunk.text.size());
    chunk.text += line;
    piece.end = static_cast<int64_t>(chunk.text.size());
    piece.file = static_cast<int>(file_);
    piece.line = line_;
    piece.cut = only_record_;
    chunk.pieces.push_back(piece);
  }
  return true;
}

/// Adds text to the chunk until it is full; false at the end of the file.
bool ChunkReader::read_text(Chunk& chunk) {
  while (static_cast<int64_t>(chunk.text.size()) < chunk_bytes_) {
    const int64_t stop = cuts_.empty() ? INT64_MAX : cuts_[cut_];  // the document ends here at the latest
    int64_t width = std::max<int64_t>(chunk_bytes_ - chunk.text.size(), 64), take = 0;
    bool ends = false;
    for (;; width *= 2) {
      // One byte more than is wanted shows whether the document goes on.
      while (static_cast<int64_t>(buffer_.size()) <= width && fill()) {
      }
      const int64_t begin = at_ - static_cast<int64_t>(buffer_.size());
      const int64_t have = std::min<int64_t>(buffer_.size(), stop - begin);
      const std::string_view window = std::string_view(buffer_).substr(0, std::min(have, width));
      ends = have <= width;
      take = ends ? have : tokenizer_->safe_cut(window);
      if (!ends && take == 0 && width >= kMaxPiece) take = cut_in_window(window);
      if (ends || take > 0) break;
    }
    Piece piece;
    piece.begin = static_cast<int64_t>(chunk.text.size());
    chunk.text.append(buffer_, 0, take);
    piece.end = static_cast<int64_t>(chunk.text.size());
    piece.file = static_cast<int>(file_);
    piece.ends_document = ends;
    piece.part = cuts_.empty() ? -1 : static_cast<int>(cut_);
    chunk.pieces.push_back(piece);
    buffer_.erase(0, take);
    if (ends && ++cut_ >= cuts_.size()) return false;
  }
  return true;
}

std::optional<Chunk> ChunkReader::next() {
  Chunk chunk;
  while (static_cast<int64_t>(chunk.text.size()) < chunk_bytes_ && file_ < list_.files.size()) {
    if (!open_) open_next();
    const int64_t left = static_cast<int64_t>(buffer_.size() - buffer_at_), before = at_ - left;
    const bool more = list_.files[file_].jsonl ? read_lines(chunk) : read_text(chunk);
    chunk.input_bytes += at_ - static_cast<int64_t>(buffer_.size() - buffer_at_) - before;
    if (more) continue;
    open_.reset();
    ++file_;
  }
  if (chunk.pieces.empty()) return std::nullopt;
  return chunk;
}

}  // namespace ltrain::data
