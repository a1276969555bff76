#include "runtime/data/text_input.h"

#include <algorithm>

#include "base/error.h"

namespace ltrain::data {
namespace {

constexpr int64_t kMaxPiece = int64_t{16} << 20;  // maximum length of a piece without a safe cut

}  // namespace

int64_t cut_in_window(std::string_view window) {
  const size_t line = window.rfind('\n');
  if (line != std::string_view::npos) return static_cast<int64_t>(line) + 1;
  // Find the lead byte of the last character, which is excluded if it is incomplete.
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
  open_ = f.open();
  at_ = 0;
  buffer_.clear();
  cut_ = 0;
  cuts_.clear();
  records_.reset();
  only_record_ = false;
  const bool cut = shares_.size() > 1 && list_.files.size() == 1;
  if (f.form == RecordForm::none) {
    if (!cut) return;
    cuts_ = cut_points(open_->size(), shares_, f.path, [&](int64_t begin, int64_t end) {
      std::string window(static_cast<size_t>(end - begin), '\0');
      open_->read(window.data(), begin, end - begin);
      return window;
    });
    return;
  }
  if (cut) {
    RecordReader ahead(*open_, f.path, f.form, chunk_bytes_);
    std::string record;
    only_record_ = ahead.next(record) && !ahead.next(record);
  }
  records_.emplace(*open_, f.path, f.form, chunk_bytes_);
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

/// Adds records to the chunk until it is full. Returns false at the end of the file.
bool ChunkReader::read_records(Chunk& chunk) {
  std::string record;
  while (static_cast<int64_t>(chunk.text.size()) < chunk_bytes_) {
    if (!records_->next(record)) return false;
    Piece piece;
    piece.kind = Piece::json;
    piece.begin = static_cast<int64_t>(chunk.text.size());
    chunk.text += record;
    piece.end = static_cast<int64_t>(chunk.text.size());
    piece.file = static_cast<int>(file_);
    piece.line = records_->line_number();
    piece.cut = only_record_;
    chunk.pieces.push_back(piece);
  }
  return true;
}

/// Adds text to the chunk until it is full. Returns false at the end of the file.
bool ChunkReader::read_text(Chunk& chunk) {
  while (static_cast<int64_t>(chunk.text.size()) < chunk_bytes_) {
    const int64_t stop = cuts_.empty() ? INT64_MAX : cuts_[cut_];  // latest end of the document
    int64_t width = std::max<int64_t>(chunk_bytes_ - chunk.text.size(), 64), take = 0;
    bool ends = false;
    for (;; width *= 2) {
      // One additional byte shows whether the document continues.
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

int64_t ChunkReader::consumed() const {
  return records_ ? records_->consumed() : at_ - static_cast<int64_t>(buffer_.size());
}

std::optional<Chunk> ChunkReader::next() {
  Chunk chunk;
  while (static_cast<int64_t>(chunk.text.size()) < chunk_bytes_ && file_ < list_.files.size()) {
    if (!open_) open_next();
    const int64_t before = consumed();
    const bool more = records_ ? read_records(chunk) : read_text(chunk);
    chunk.input_bytes += consumed() - before;
    if (more) continue;
    records_.reset();
    open_.reset();
    ++file_;
  }
  if (chunk.pieces.empty()) return std::nullopt;
  return chunk;
}

}  // namespace ltrain::data
