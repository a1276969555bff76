#include "runtime/data/input/text_input.h"

#include <algorithm>

#include "base/error.h"
#include "runtime/data/input/temporary_copy.h"

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

std::optional<std::string> record_text(const Chunk& chunk, const Piece& piece, const RecordOptions& options,
                                       const std::string& path, BadRecords& bad) {
  const auto raw =
      std::string_view(chunk.text)
          .substr(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.end - piece.begin));
  if (piece.kind == Piece::json) return read_record(raw, options, path, piece.line, bad);
  if (piece.problem.empty()) return read_text_record(raw, options, path, piece.position, bad);
  skip_record(fmt::format("{}: {}: {}", path, piece.position, piece.problem), options, bad);
  return std::nullopt;
}

bool is_kept(const Chunk& chunk, const Piece& piece, const RecordOptions& options, const std::string& path,
             BadRecords& bad, FilterCounts& counts) {
  if (options.where.empty()) return true;
  const bool json = piece.kind == Piece::json;
  if (!json && !piece.problem.empty()) return true;
  const int64_t begin = json ? piece.begin : piece.fields_begin, end = json ? piece.end : piece.fields_end;
  const auto fields =
      std::string_view(chunk.text).substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  std::string repaired;
  if (options.on_bad == OnBadRecord::replace) repaired = repair_record(fields);
  ++counts.read;
  try {
    const bool kept =
        keeps_record(options.where, repaired.empty() ? fields : repaired,
                     json ? fmt::format("{}:{}", path, piece.line) : path + ": " + piece.position);
    counts.kept += kept;
    return kept;
  } catch (const Error& e) {
    skip_record(e.what(), options, bad);
    return false;
  }
}

ChunkReader::ChunkReader(const InputList& list, const RecordOptions& options, const Tokenizer& tokenizer,
                         int64_t chunk_bytes, std::vector<double> shares)
    : list_(list),
      options_(options),
      tokenizer_(tokenizer.clone()),
      chunk_bytes_(chunk_bytes),
      shares_(std::move(shares)) {}

void ObjectPrefetch::start(std::shared_ptr<const objects::Object> object,
                           const objects::CacheOptions& options) {
  stop_ = false;
  thread_ = std::thread([this, object = std::move(object), options] {
    try {
      objects::open_object(*object, options, true, &stop_);
    } catch (const std::exception&) {  // the reader who opens the object has the failure again, and says it
    }
  });
}

void ObjectPrefetch::wait(bool stop) {
  if (!thread_.joinable()) return;
  stop_ = stop;
  thread_.join();
}

/// Downloads the next object while this one is read.
void ChunkReader::prefetch_next() {
  if (file_ + 1 < list_.files.size() && list_.files[file_ + 1].object)
    prefetch_.start(list_.files[file_ + 1].object, options_.objects);
}

void ChunkReader::open_next() {
  prefetch_.wait(false);
  open_file_ = resolved(list_.files[file_], options_);
  prefetch_next();
  const TextFile& f = open_file_;
  const bool cut = shares_.size() > 1 && list_.files.size() == 1;
  only_record_ = false;
  if (f.format) {
    records_ = open_records(f);
    if (!options_.where.empty())
      fields_ = f.format->open(f.source(), {filter_fields(options_.where), true, "where (--where)"});
    records::Record record;
    if (const auto ahead = cut ? open_records(f) : nullptr)
      only_record_ = ahead->next(record) && !ahead->next(record);
  } else if (f.form != RecordForm::none) {
    json_.emplace(f.source(), f.form, chunk_bytes_);
    if (cut) {
      RecordReader ahead(f.source(), f.form, chunk_bytes_);
      std::string record;
      only_record_ = ahead.next(record) && !ahead.next(record);
    }
  } else {
    open_text(f, cut);
  }
}

std::unique_ptr<records::RecordSource> ChunkReader::open_records(const TextFile& f) const {
  if (options_.whole) return f.format->open(f.source(), {{}, true});
  return f.format->open(f.source(), {{options_.field.value_or(f.format->default_field)}, false});
}

void ChunkReader::open_text(const TextFile& f, bool cut) {
  records::Source source = f.source();
  at_ = 0;
  buffer_.clear();
  cut_ = 0;
  cuts_.clear();
  if (cut) {
    if (source.compression != records::Compression::none) {  // cuts are looked for at any offset
      const auto stream = records::open_stream(source.file, source.name, source.compression);
      source.file = temporary_copy(f.path, [&](void* to, int64_t n) { return stream->read_some(to, n); });
      source.compression = records::Compression::none;
    }
    cuts_ = cut_points(source.file->size(), shares_, f.path, [&](int64_t begin, int64_t end) {
      std::string window(static_cast<size_t>(end - begin), '\0');
      source.file->read(window.data(), begin, end - begin);
      return window;
    });
  }
  block_ = block_for(source, chunk_bytes_);
  text_ = records::open_stream(source.file, source.name, source.compression);
}

bool ChunkReader::fill() {
  const size_t old = buffer_.size();
  buffer_.resize(old + static_cast<size_t>(block_));
  const int64_t n = text_->read_some(buffer_.data() + old, block_);
  buffer_.resize(old + static_cast<size_t>(n));
  at_ += n;
  return n > 0;
}

/// Adds JSON records to the chunk until it is full. Returns false at the end of the file.
bool ChunkReader::read_json(Chunk& chunk) {
  std::string record;
  while (chunk.bytes() < chunk_bytes_) {
    if (!json_->next(record)) return false;
    Piece piece;
    piece.kind = Piece::json;
    piece.begin = static_cast<int64_t>(chunk.text.size());
    chunk.text += record;
    piece.end = static_cast<int64_t>(chunk.text.size());
    piece.file = static_cast<int>(file_);
    piece.line = json_->line_number();
    piece.cut = only_record_;
    chunk.pieces.push_back(std::move(piece));
  }
  return true;
}

/// Adds the fields of the last record that RecordOptions::where needs.
void ChunkReader::add_fields(Chunk& chunk, Piece& piece) {
  records::Record fields;
  if (!fields_->next(fields) || fields_->position() != records_->position())
    fail(ExitCode::data, "{}: {}: expected the fields of where beside the text, got another record",
         open_file_.path, piece.position);
  if (piece.problem.empty()) piece.problem = std::move(fields.problem);
  piece.fields_begin = static_cast<int64_t>(chunk.text.size());
  chunk.text += fields.text;
  piece.fields_end = static_cast<int64_t>(chunk.text.size());
}

/// Adds records of another format to the chunk until it is full. Returns false at the end of the file.
bool ChunkReader::read_records(Chunk& chunk) {
  records::Record record;
  while (chunk.bytes() < chunk_bytes_) {
    if (!records_->next(record)) return false;
    Piece piece;
    piece.kind = record.has_tokens ? Piece::tokens : Piece::record;
    piece.file = static_cast<int>(file_);
    piece.position = records_->position();
    piece.problem = std::move(record.problem);
    piece.cut = only_record_;
    const auto append = [&](auto& to, const auto& from) {
      piece.begin = static_cast<int64_t>(to.size());
      to.insert(to.end(), from.begin(), from.end());
      piece.end = static_cast<int64_t>(to.size());
    };
    record.has_tokens ? append(chunk.tokens, record.tokens) : append(chunk.text, record.text);
    if (fields_) add_fields(chunk, piece);
    chunk.pieces.push_back(std::move(piece));
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
    chunk.pieces.push_back(std::move(piece));
    buffer_.erase(0, take);
    if (ends && ++cut_ >= cuts_.size()) return false;
  }
  return true;
}

int64_t ChunkReader::consumed() const {
  return records_ ? records_->consumed() : json_ ? json_->consumed() : text_->consumed();
}

std::optional<Chunk> ChunkReader::next() {
  Chunk chunk;
  chunk.text.reserve(static_cast<size_t>(chunk_bytes_));
  chunk.first_document = documents_;
  while (chunk.bytes() < chunk_bytes_ && file_ < list_.files.size()) {
    if (!text_ && !json_ && !records_) open_next();
    const bool more = records_ ? read_records(chunk) : json_ ? read_json(chunk) : read_text(chunk);
    const int64_t now = consumed();
    chunk.input_bytes += now - counted_;
    counted_ = now;
    if (more) continue;
    text_.reset();
    json_.reset();
    records_.reset();
    fields_.reset();
    counted_ = 0;
    open_file_ = {};
    ++file_;
  }
  if (chunk.pieces.empty()) return std::nullopt;
  for (const Piece& piece : chunk.pieces) documents_ += piece.ends_document;
  return chunk;
}

}  // namespace ltrain::data
