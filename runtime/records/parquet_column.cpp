#include "runtime/records/parquet_column.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/printable.h"

namespace ltrain::records::parquet {
namespace {

constexpr int64_t kMostMemory = int64_t{1} << 32;
constexpr int64_t kWindow = 1 << 20;      // bytes of a read
constexpr int64_t kHeader = 1 << 12;      // first guess of the size of a page header
constexpr int64_t kMostHeader = 1 << 26;  // its statistics contain whole values

}  // namespace

ColumnReader::ColumnReader(std::shared_ptr<const data::InputFile> file, std::string path, std::string name,
                           const Leaf& leaf, int64_t data_end, std::shared_ptr<int64_t> memory)
    : file_(std::move(file)),
      path_(std::move(path)),
      name_(std::move(name)),
      leaf_(leaf),
      data_end_(data_end),
      memory_(std::move(memory)),
      def_(kBatch),
      rep_(kBatch),
      values_(kBatch) {}

std::string ColumnReader::where() const {
  return fmt::format("{}: row group {}, column {}, page at byte {}", path_, row_group_, printable(name_, 100),
                     page_offset_);
}

template <class Action>
auto ColumnReader::guarded(Action&& action) {
  try {
    return action();
  } catch (const Damage& damage) {
    fail(ExitCode::data, "{}: {}", where(), damage.what());
  }
}

void ColumnReader::open(const ColumnChunk& chunk, size_t row_group) {
  chunk_ = chunk;
  row_group_ = row_group;
  page_offset_ = chunk.begin();
  guarded([&] {
    if (chunk.encrypted)
      damaged("the column is encrypted; write the file without encryption, or choose other fields");
    if (!chunk.file.empty()) damaged("its data is in another file, {}", printable(chunk.file, 100));
    if (!chunk.has_metadata) damaged("the column chunk has no metadata");
    if (chunk.type != leaf_.type)
      damaged("the column chunk has the physical type {}, expected {} as in the schema",
              static_cast<int>(chunk.type), static_cast<int>(leaf_.type));
    const auto codec = codec_of(chunk.codec);
    if (!codec)
      damaged("compressed with {}; expected none, snappy, gzip, brotli, lz4, zstd or lz4_raw",
              chunk.codec == 3 ? "lzo" : fmt::format("the unknown codec {}", chunk.codec));
    codec_ = *codec;
    if (chunk.values == 0) return;  // without pages, and often without a position
    if (chunk.begin() < 4 || chunk.begin() > data_end_ || chunk.compressed_bytes > data_end_ - chunk.begin())
      damaged("the column chunk has {} bytes at byte {}, and the data ends at byte {}",
              chunk.compressed_bytes, chunk.begin(), data_end_);
  });
  constexpr int64_t kMargin = 100;  // old writers left out the header of the dictionary page
  offset_ = chunk.begin();
  end_ = chunk.values == 0 ? offset_ : std::min(offset_ + chunk.compressed_bytes + kMargin, data_end_);
  values_left_ = chunk.values;
  page_left_ = present_ = 0;
  entry_ = entries_ = value_ = values_end_ = 0;
  has_dictionary_ = false;
  decoder_ = nullptr;
}

/// Counts `bytes` instead of `held`.
void ColumnReader::take_memory(int64_t& held, int64_t bytes) {
  if (*memory_ - held + bytes > kMostMemory)
    damaged("the pages of all columns need more than {} bytes; choose fewer fields", kMostMemory);
  *memory_ += bytes - held;
  held = bytes;
}

/// Bytes of the file. Valid until the next call.
Bytes ColumnReader::view(int64_t offset, int64_t bytes) {
  if (bytes > end_ - offset)
    damaged("{} bytes are expected, and the column chunk ends after {}", bytes, end_ - offset);
  const bool inside =
      offset >= window_begin_ && offset + bytes <= window_begin_ + static_cast<int64_t>(window_bytes_);
  if (!inside) {
    const auto now = static_cast<size_t>(std::min(std::max(bytes, kWindow), end_ - offset));
    if (window_.size() < now) window_ = std::vector<uint8_t>(now);
    window_bytes_ = 0;
    file_->read(window_.data(), offset, static_cast<int64_t>(now));
    window_begin_ = offset;
    window_bytes_ = now;
  }
  return Bytes(window_).subspan(static_cast<size_t>(offset - window_begin_), static_cast<size_t>(bytes));
}

/// Reads the page at offset_ and goes behind it.
PageHeader ColumnReader::read_header(Bytes& body) {
  for (int64_t guess = kHeader;; guess *= 4) {
    const int64_t bytes = std::min(guess, end_ - offset_);
    if (bytes <= 0) damaged("the column chunk ends, and {} values are missing", values_left_);
    if (const auto header = read_page_header(view(offset_, bytes))) {
      const auto start = static_cast<int64_t>(header->header_bytes);
      if (header->compressed_bytes > end_ - offset_ - start)
        damaged("the page has {} bytes, and the column chunk ends after {}", header->compressed_bytes,
                end_ - offset_ - start);
      body = view(offset_ + start, header->compressed_bytes);
      offset_ += start + header->compressed_bytes;
      return *header;
    }
    if (bytes == end_ - offset_ || guess >= kMostHeader) damaged("the page header has no end");
  }
}

void ColumnReader::check_crc(const PageHeader& page, Bytes body) const {
  if (!page.crc) return;
  const auto got = static_cast<uint32_t>(crc32_z(crc32_z(0, nullptr, 0), body.data(), body.size()));
  if (got != *page.crc)
    damaged("the page's checksum is {:08x}, expected {:08x}: the file is damaged", got, *page.crc);
}

void ColumnReader::read_dictionary(const PageHeader& page, Bytes body) {
  if (has_dictionary_) damaged("the column chunk has two dictionaries");
  if (page.encoding != static_cast<int>(Encoding::plain) &&
      page.encoding != static_cast<int>(Encoding::plain_dictionary))
    damaged("the dictionary has the encoding {}, expected PLAIN", encoding_name(page.encoding));
  take_memory(dictionary_memory_, page.bytes + int64_t{page.values} * static_cast<int64_t>(sizeof(Value)));
  Bytes bytes = decompress_to(dictionary_page_, codec_, body, page.bytes, where());
  if (codec_ == Codec::none) {  // the window moves on
    const auto copy = dictionary_page_.reset(static_cast<int64_t>(bytes.size()));
    std::copy(bytes.begin(), bytes.end(), copy.begin());
    bytes = dictionary_page_.bytes();
  }
  // A value has at least a bit, so that a false count cannot take memory.
  if (page.values > static_cast<int64_t>(bytes.size()) * 8)
    damaged("the dictionary has {} values in {} bytes", page.values, bytes.size());
  dictionary_.clear();
  dictionary_.reserve(static_cast<size_t>(page.values));
  const auto decoder = make_decoder(static_cast<int>(Encoding::plain), leaf_, bytes, nullptr);
  while (dictionary_.size() < static_cast<size_t>(page.values)) {
    const auto n = std::min(kBatch, static_cast<size_t>(page.values) - dictionary_.size());
    const auto got = decoder->decode(values_.data(), static_cast<int64_t>(n));
    dictionary_.insert(dictionary_.end(), values_.begin(), values_.begin() + got);
  }
  has_dictionary_ = true;
}

/// Takes the levels from the front of a page of version 1.
Bytes ColumnReader::take_levels(Bytes& bytes, int32_t encoding, int most, int64_t values,
                                bool& packed) const {
  if (most == 0) return {};
  packed = encoding == static_cast<int>(Encoding::bit_packed);
  uint64_t size = 0;
  if (packed) {
    size =
        (static_cast<uint64_t>(values) * static_cast<uint64_t>(bits_for(static_cast<uint32_t>(most))) + 7) /
        8;
  } else {
    if (encoding != static_cast<int>(Encoding::rle))
      damaged("levels have the encoding {}, expected RLE or BIT_PACKED", encoding_name(encoding));
    uint32_t stored = 0;
    if (bytes.size() < 4) damaged("the page ends before its levels");
    std::memcpy(&stored, bytes.data(), 4);
    bytes = bytes.subspan(4);
    size = stored;
  }
  if (size > bytes.size()) damaged("levels have {} bytes where {} are left", size, bytes.size());
  const Bytes levels = bytes.first(size);
  bytes = bytes.subspan(size);
  return levels;
}

void ColumnReader::read_data(const PageHeader& page, Bytes body) {
  take_memory(page_memory_, std::max<int64_t>(page_memory_, page.bytes));  // the buffer does not shrink
  Bytes bytes = decompress_to(page_, codec_, body, page.bytes, where());
  const Bytes rep = take_levels(bytes, page.level_encoding_rep, leaf_.max_rep, page.values, rep_packed_);
  const Bytes def = take_levels(bytes, page.level_encoding_def, leaf_.max_def, page.values, def_packed_);
  const int rep_bits = bits_for(static_cast<uint32_t>(leaf_.max_rep)),
            def_bits = bits_for(static_cast<uint32_t>(leaf_.max_def));
  rep_runs_ = RunReader(rep, rep_bits);
  def_runs_ = RunReader(def, def_bits);
  rep_bits_ = LevelBitsReader(rep, rep_bits);
  def_bits_ = LevelBitsReader(def, def_bits);
  start_values(page, bytes);
}

void ColumnReader::read_data_v2(const PageHeader& page, Bytes body) {
  const int64_t levels = int64_t{page.rep_bytes} + page.def_bytes;
  if (levels > static_cast<int64_t>(body.size()) || levels > page.bytes)
    damaged("levels have {} bytes in a page of {}", levels, body.size());
  const auto rep = static_cast<size_t>(page.rep_bytes), def = static_cast<size_t>(page.def_bytes);
  rep_packed_ = def_packed_ = false;
  // Levels are used when values are, and the window moves only with the next page.
  rep_runs_ = RunReader(body.first(rep), bits_for(static_cast<uint32_t>(leaf_.max_rep)));
  def_runs_ = RunReader(body.subspan(rep, def), bits_for(static_cast<uint32_t>(leaf_.max_def)));
  const int64_t size = page.bytes - levels;
  Bytes bytes = body.subspan(rep + def);
  take_memory(page_memory_, std::max(page_memory_, size));
  // pyarrow before 3.0 compressed values and said that they are not.
  const bool compressed = page.is_compressed || static_cast<int64_t>(bytes.size()) != size;
  if (size == 0)
    bytes = {};
  else if (compressed)
    bytes = decompress_to(page_, codec_, bytes, size, where());
  start_values(page, bytes);
}

void ColumnReader::start_values(const PageHeader& page, Bytes bytes) {
  if (page.values > values_left_)
    damaged("the page has {} values, and {} are left of the column chunk", page.values, values_left_);
  values_left_ -= page.values;
  page_left_ = page.values;
  // A page of nulls may have no values in any encoding.
  const bool empty = page.values == 0 || (bytes.empty() && leaf_.max_def > 0);
  decoder_ =
      empty ? nullptr : make_decoder(page.encoding, leaf_, bytes, has_dictionary_ ? &dictionary_ : nullptr);
}

/// Reads the next page with entries; false at the end of the column chunk.
bool ColumnReader::read_page() {
  while (page_left_ == 0) {
    if (values_left_ == 0) return false;
    page_offset_ = offset_;
    Bytes body;
    const PageHeader page = read_header(body);
    if (page.type == PageType::index || page.type == PageType::other) continue;
    check_crc(page, body);
    if (page.type == PageType::dictionary)
      read_dictionary(page, body);
    else if (page.type == PageType::data)
      read_data(page, body);
    else
      read_data_v2(page, body);
  }
  return true;
}

void ColumnReader::decode_levels(RunReader& runs, LevelBitsReader& bits, bool packed, int most, uint32_t* to,
                                 size_t n) const {
  if (most == 0) return;  // zero from the start
  packed ? bits.decode(to, static_cast<int64_t>(n)) : runs.decode(to, static_cast<int64_t>(n));
  const uint32_t largest = *std::max_element(to, to + n);
  if (largest > static_cast<uint32_t>(most)) damaged("a level is {}, expected at most {}", largest, most);
}

/// Decodes levels of the next entries.
void ColumnReader::fill() {
  guarded([&] {
    if (present_ > 0 || value_ < values_end_)
      LT_CHECK(present_ == 0 && value_ == values_end_, "values were left");
    entry_ = entries_ = 0;
    if (!read_page()) return;
    const auto n = static_cast<size_t>(std::min<int64_t>(kBatch, page_left_));
    decode_levels(rep_runs_, rep_bits_, rep_packed_, leaf_.max_rep, rep_.data(), n);
    decode_levels(def_runs_, def_bits_, def_packed_, leaf_.max_def, def_.data(), n);
    page_left_ -= static_cast<int64_t>(n);
    present_ = leaf_.max_def == 0 ? static_cast<int64_t>(n)
                                  : std::count(def_.begin(), def_.begin() + static_cast<int64_t>(n),
                                               static_cast<uint32_t>(leaf_.max_def));
    entries_ = n;
  });
}

/// Decodes values of the present entries.
void ColumnReader::fill_values() {
  guarded([&] {
    LT_CHECK(present_ > 0, "a value of a column was read twice");
    if (!decoder_) damaged("the page has no values, and its levels count {}", present_);
    value_ = 0;
    values_end_ = static_cast<size_t>(decoder_->decode(values_.data(), std::min<int64_t>(present_, kBatch)));
    present_ -= static_cast<int64_t>(values_end_);
  });
}

}  // namespace ltrain::records::parquet
