#include "runtime/data/indexed_dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "runtime/data/dataset_metadata.h"

namespace ltrain::data {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian and are read as they lie");

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr int64_t kHeaderBytes = 34;
constexpr int64_t kBlock = 4096;  // sequences between two entries of cumulative_

template <class T>
T load(const void* from) {  // .idx is unaligned
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// Reads an array of T in a file sequentially through a small buffer.
template <class T>
class ArrayReader {
 public:
  ArrayReader(const InputFile& file, int64_t offset, int64_t count)
      : file_(file), offset_(offset), left_(count) {}
  T next() {
    if (at_ == have_) {
      have_ = std::min<int64_t>(left_, sizeof(buffer_) / sizeof(T));
      file_.read(buffer_, offset_, have_ * sizeof(T));
      offset_ += have_ * sizeof(T);
      left_ -= have_;
      at_ = 0;
    }
    return load<T>(buffer_ + sizeof(T) * at_++);
  }

 private:
  const InputFile& file_;
  int64_t offset_, left_, at_ = 0, have_ = 0;
  char buffer_[1 << 15];
};

struct IndexLayout {
  int64_t sequences, documents_plus_one;
  bool modes;
  int64_t lengths() const { return kHeaderBytes; }
  int64_t pointers() const { return kHeaderBytes + 4 * sequences; }
  int64_t documents() const { return kHeaderBytes + 12 * sequences; }
  int64_t modes_at() const { return documents() + 8 * documents_plus_one; }
};

IndexLayout layout_of(const SourceInfo& info) { return {info.sequences, info.documents + 1, false}; }

/// Reads header and file size. Sets type, sequences and documents.
IndexLayout read_header(const InputFile& index, SourceInfo& info) {
  const std::string& path = index.path();
  if (index.size() < kHeaderBytes)
    fail(ExitCode::data, "{}: {} bytes; an index has a header of {}. It is truncated or not an index", path,
         index.size(), kHeaderBytes);
  char h[kHeaderBytes];
  index.read(h, 0, kHeaderBytes);
  if (std::memcmp(h, kMagic, sizeof kMagic) != 0)
    fail(ExitCode::data, "{}: byte offset 0: does not begin with MMIDIDX; not a Megatron token index", path);
  const uint64_t version = load<uint64_t>(h + 9);
  if (version != 1)
    fail(ExitCode::data, "{}: byte offset 9: version {}; this ltrain reads version 1", path, version);
  const int code = static_cast<unsigned char>(h[17]);
  if ((code < 1 || code > 5) && code != 8)
    fail(ExitCode::data,
         "{}: byte offset 17: element type code {}; tokens are 1 (u8), 2 (i8), 3 (i16), 4 (i32), 5 (i64) or "
         "8 (u16)",
         path, code);
  info.type = static_cast<TokenType>(code);

  // Each sequence takes 12 bytes and each document 8, so the file's size bounds both before they are
  // multiplied.
  const uint64_t body = static_cast<uint64_t>(index.size() - kHeaderBytes);
  const uint64_t s = load<uint64_t>(h + 18), d = load<uint64_t>(h + 26);
  if (s > body / 12)
    fail(ExitCode::data,
         "{}: byte offset 18: {} sequences need {} bytes each, but the file has {} after its header; it is "
         "truncated",
         path, s, 12, body);
  if (d < 1 || d > body / 8)
    fail(ExitCode::data,
         "{}: byte offset 26: document count {}; it is the number of documents plus one, and the file has "
         "room for {}",
         path, d, body / 8);
  const uint64_t need = 12 * s + 8 * d;
  if (body < need)
    fail(ExitCode::data, "{}: {} bytes; {} sequences and {} documents need {}: it is truncated", path,
         index.size(), s, d - 1, need + kHeaderBytes);
  const bool modes = s > 0 && body == need + s;
  if (body != need && !modes)
    fail(ExitCode::data,
         "{}: {} bytes; {} sequences and {} documents need {}: what follows at byte offset {} is unknown",
         path, index.size(), s, d - 1, need + kHeaderBytes, need + kHeaderBytes);
  info.sequences = static_cast<int64_t>(s);
  info.documents = static_cast<int64_t>(d) - 1;
  return {info.sequences, info.documents + 1, modes};
}

void check_bin_size(const InputFile& bin, const SourceInfo& info) {
  const int64_t item = token_bytes(info.type);
  if (bin.size() % item != 0)
    fail(ExitCode::data, "{}: {} bytes are not whole tokens of {} bytes ({}.idx says {}): it is truncated",
         bin.path(), bin.size(), item, info.prefix, token_type_name(info.type));
}

/// Number of tokens from the end of the last sequence, if it is the end of .bin, as every writer leaves it.
/// Otherwise adds up the lengths.
int64_t count_tokens(const InputFile& index, const InputFile& bin, const SourceInfo& info) {
  if (info.sequences == 0) return 0;
  const IndexLayout at = layout_of(info);
  char raw[8];
  index.read(raw, at.lengths() + 4 * (info.sequences - 1), 4);
  const int64_t length = load<int32_t>(raw);
  index.read(raw, at.pointers() + 8 * (info.sequences - 1), 8);
  const int64_t pointer = load<int64_t>(raw);
  const int64_t item = token_bytes(info.type);
  if (length >= 0 && pointer >= 0 && pointer <= bin.size() && length <= (bin.size() - pointer) / item &&
      pointer + length * item == bin.size())
    return bin.size() / item;
  if (pointer > bin.size() || (pointer >= 0 && length > (bin.size() - pointer) / item))
    fail(ExitCode::data,
         "{}: {} bytes, but {} places its last sequence ({} tokens of {} bytes) at byte offset {}: the .bin "
         "is truncated",
         bin.path(), bin.size(), index.path(), length, item, pointer);
  int64_t sum = 0;
  ArrayReader<int32_t> lengths(index, at.lengths(), info.sequences);
  for (int64_t i = 0; i < info.sequences; ++i) sum += std::max(0, lengths.next());
  return sum;
}

template <class T>
void convert(const char* from, int64_t count, int64_t limit, int32_t* out, int64_t* bad) {
  // One pass without branches. The position of a bad token is searched only if there is one.
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    const T v = load<T>(from + i * sizeof(T));
    wrong |= static_cast<uint64_t>(v) >= static_cast<uint64_t>(limit);  // a negative token becomes huge
    out[i] = static_cast<int32_t>(v);
  }
  *bad = -1;
  if (wrong == 0) return;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t v = static_cast<int64_t>(load<T>(from + i * sizeof(T)));
    if (v < 0 || v >= limit) {
      *bad = i;
      return;
    }
  }
}

int64_t token_value(TokenType type, const char* from) {
  switch (type) {
    case TokenType::u8:
      return load<uint8_t>(from);
    case TokenType::i8:
      return load<int8_t>(from);
    case TokenType::i16:
      return load<int16_t>(from);
    case TokenType::u16:
      return load<uint16_t>(from);
    case TokenType::i32:
      return load<int32_t>(from);
    case TokenType::i64:
      return load<int64_t>(from);
  }
  return -1;
}

int64_t convert_any(TokenType type, const char* from, int64_t count, int64_t limit, int32_t* out) {
  int64_t bad = -1;
  switch (type) {
    case TokenType::u8:
      convert<uint8_t>(from, count, limit, out, &bad);
      break;
    case TokenType::i8:
      convert<int8_t>(from, count, limit, out, &bad);
      break;
    case TokenType::i16:
      convert<int16_t>(from, count, limit, out, &bad);
      break;
    case TokenType::u16:
      convert<uint16_t>(from, count, limit, out, &bad);
      break;
    case TokenType::i32:
      convert<int32_t>(from, count, limit, out, &bad);
      break;
    case TokenType::i64:
      convert<int64_t>(from, count, limit, out, &bad);
      break;
  }
  return bad;
}

}  // namespace

int64_t token_bytes(TokenType t) {
  switch (t) {
    case TokenType::u8:
    case TokenType::i8:
      return 1;
    case TokenType::i16:
    case TokenType::u16:
      return 2;
    case TokenType::i32:
      return 4;
    case TokenType::i64:
      return 8;
  }
  return 0;
}

std::string token_type_name(TokenType t) {
  switch (t) {
    case TokenType::u8:
      return "u8";
    case TokenType::i8:
      return "i8";
    case TokenType::i16:
      return "i16";
    case TokenType::u16:
      return "u16";
    case TokenType::i32:
      return "i32";
    case TokenType::i64:
      return "i64";
  }
  return "?";
}

std::string dataset_prefix(const std::string& path) {
  for (const char* end : {".bin", ".idx"})
    if (path.ends_with(end)) return path.substr(0, path.size() - 4);
  return path;
}

SourceInfo inspect_source(const std::string& path) {
  SourceInfo info;
  info.prefix = dataset_prefix(path);
  const bool idx = file_exists(info.prefix + ".idx"), bin = file_exists(info.prefix + ".bin");
  if (!idx || !bin) {
    if (file_exists(path) && !path.ends_with(".bin") && !path.ends_with(".idx"))
      fail(ExitCode::data,
           "{}: no token file (there is no {}.{}). To make one of text: ltrain data build --input {} "
           "--output PREFIX",
           path, info.prefix, idx ? "bin" : "idx", path);
    fail(ExitCode::data,
         "{}.{}: not found. A data path is the PREFIX of PREFIX.bin and PREFIX.idx, as `ltrain data build "
         "--output PREFIX` writes them",
         info.prefix, idx ? "bin" : "idx");
  }
  InputFile index(info.prefix + ".idx"), tokens(info.prefix + ".bin");
  read_header(index, info);
  check_bin_size(tokens, info);
  info.tokens = count_tokens(index, tokens, info);
  read_sidecar(info);
  return info;
}

bool has_samples(const SourceInfo& info, int64_t seq_length, SamplePacking packing) {
  return packing == SamplePacking::concatenate ? info.samples(seq_length) > 0 : info.tokens > 0;
}

void check_tokens(const SourceInfo& info, int64_t vocab_size, int64_t seq_length) {
  if (info.max_token >= vocab_size)
    fail(ExitCode::data,
         "{}.bin: holds token {}, but the model's vocabulary has {} (ids 0 to {}); it was built with "
         "tokenizer {} of vocabulary {}: set model.vocab_size to at least {}",
         info.prefix, info.max_token, vocab_size, vocab_size - 1, info.tokenizer, info.vocab_size,
         info.vocab_size);
  if (info.packed_length > 0 && info.packed_length != seq_length)
    fail(ExitCode::data,
         "{}: documents are packed into samples of {} tokens; expected data.seq_length = {}, got {}. Build "
         "it again "
         "with --pack {}",
         info.prefix, info.packed_length, info.packed_length, seq_length, seq_length);
}

void check_source(const SourceInfo& info, int64_t vocab_size, int64_t seq_length, SamplePacking packing) {
  check_tokens(info, vocab_size, seq_length);
  if (packing != SamplePacking::concatenate && info.tokens == 0)
    fail(ExitCode::data, "{}: expected at least 1 token, got an empty token file", info.prefix);
  if (!has_samples(info, seq_length, packing))
    fail(ExitCode::data,
         "{}: {} tokens are shorter than one sample of seq_length + 1 = {}; use a seq_length of at most {} "
         "or more data",
         info.prefix, info.tokens, seq_length + 1, std::max<int64_t>(0, info.tokens - 1));
}

IndexedDataset::IndexedDataset(const std::string& path)
    : info_(inspect_source(path)), index_(info_.prefix + ".idx"), bin_(info_.prefix + ".bin") {
  check_index();
  if (!info_.loss_mask) return;
  mask_ = std::make_unique<InputFile>(info_.prefix + ".mask");
  const int64_t bytes = (info_.tokens + 7) / 8;
  if (mask_->size() != bytes || !contiguous_)
    fail(ExitCode::data,
         "{}: expected {} bytes for the {} tokens of {}, got {}: they are not of the same build. Build the "
         "data again",
         mask_->path(), bytes, info_.tokens, bin_.path(), mask_->size());
}

void IndexedDataset::read_mask(int64_t first, int64_t count, uint8_t* out) const {
  LT_CHECK(mask_ && first >= 0 && count >= 0 && first <= info_.tokens - count,
           "expected a token range within {} tokens with a loss mask, got {} tokens from {}", info_.tokens,
           count, first);
  if (count == 0) return;
  const int64_t from = first / 8, to = (first + count - 1) / 8;
  std::vector<uint8_t> bytes(static_cast<size_t>(to - from + 1));
  mask_->read(bytes.data(), from, static_cast<int64_t>(bytes.size()));
  for (int64_t i = 0; i < count; ++i)
    out[i] = bytes[static_cast<size_t>((first + i) / 8 - from)] >> ((first + i) % 8) & 1;
}

std::vector<double> IndexedDataset::read_margins() const {
  LT_CHECK(info_.margins, "expected margins of the pairs of {}, got none", info_.prefix);
  const InputFile file(info_.prefix + ".margins");
  if (file.size() % 8 != 0 || file.size() / 8 > info_.documents / 2)
    fail(ExitCode::data, "{}: {} bytes, expected 8 for each of at most {} pairs. Build the data again",
         file.path(), file.size(), info_.documents / 2);
  std::vector<double> margins(static_cast<size_t>(file.size() / 8));
  file.read(margins.data(), 0, file.size());
  for (size_t i = 0; i < margins.size(); ++i)
    if (!std::isfinite(margins[i]))
      fail(ExitCode::data, "{}: margin {} of pair {}, expected a finite number. Build the data again",
           file.path(), margins[i], i);
  return margins;
}

/// Fails unless document starts go up from sequence 0 to the last one, and all sequences are text.
static void check_documents(const InputFile& index, const IndexLayout& at, const SourceInfo& info) {
  const std::string& path = index.path();
  const int64_t s = info.sequences;
  ArrayReader<int64_t> documents(index, at.documents(), info.documents + 1);
  int64_t before = 0;
  for (int64_t d = 0; d <= info.documents; ++d) {
    const int64_t first = documents.next();
    const char* rule = nullptr;
    if (d == 0 && first != 0) rule = "the first document begins at sequence 0";
    if (d == info.documents && first != s) rule = "the last entry is the number of sequences";
    if (first < before) rule = "document starts do not go down";
    if (rule)
      fail(ExitCode::data, "{}: byte offset {}: document {} begins at sequence {} of {}: {}", path,
           at.documents() + 8 * d, d, first, s, rule);
    before = first;
  }
  if (at.modes) {
    ArrayReader<int8_t> modes(index, at.modes_at(), s);
    for (int64_t i = 0; i < s; ++i)
      if (const int mode = modes.next(); mode != 0)
        fail(ExitCode::data,
             "{}: byte offset {}: sequence {} has mode {}: multimodal data; ltrain trains on text (mode 0)",
             path, at.modes_at() + i, i, mode);
  }
}

void IndexedDataset::check_index() {
  SourceInfo again = info_;
  const IndexLayout at = read_header(index_, again);
  check_bin_size(bin_, again);
  const std::string& path = index_.path();
  const int64_t item = token_bytes(again.type), s = again.sequences;

  ArrayReader<int32_t> lengths(index_, at.lengths(), s);
  ArrayReader<int64_t> pointers(index_, at.pointers(), s);
  int64_t total = 0, end = 0;
  cumulative_.reserve(s / kBlock + 1);
  for (int64_t i = 0; i < s; ++i) {
    if (i % kBlock == 0) cumulative_.push_back(total);
    const int64_t length = lengths.next(), pointer = pointers.next();
    if (length < 0)
      fail(ExitCode::data, "{}: byte offset {}: sequence {} has length {}", path, at.lengths() + 4 * i, i,
           length);
    if (pointer < 0 || pointer % item != 0)
      fail(ExitCode::data,
           "{}: byte offset {}: sequence {} lies at {}, not a multiple of the {} bytes of a token", path,
           at.pointers() + 8 * i, i, pointer, item);
    if (pointer > bin_.size() || length > (bin_.size() - pointer) / item)
      fail(ExitCode::data,
           "{}: byte offset {}: sequence {} is {} tokens at byte {}, past the end of {} ({} bytes): the .bin "
           "is truncated, or of another build",
           path, at.pointers() + 8 * i, i, length, pointer, bin_.path(), bin_.size());
    contiguous_ = contiguous_ && pointer == total * item;
    total += length;
    if (total > INT64_MAX / 8 - INT32_MAX)
      fail(ExitCode::data, "{}: sequence {}: too many tokens in all", path, i);
    end = std::max(end, pointer + length * item);
  }
  if (end != bin_.size())
    fail(ExitCode::data,
         "{}: {} bytes, of which the index {} names only the first {}: they are not of the same build",
         bin_.path(), bin_.size(), path, end);

  check_documents(index_, at, again);
  if (total != info_.tokens || again.documents != info_.documents || again.type != info_.type)
    fail(ExitCode::data,
         "{}: changed while it was being opened, or its sequences overlap: {} tokens, {} expected", path,
         total, info_.tokens);
}

int64_t IndexedDataset::sequence_start(int64_t sequence) const {
  if (sequence == info_.sequences) return info_.tokens;
  const int64_t block = sequence / kBlock;
  int64_t start = cumulative_[block];
  ArrayReader<int32_t> lengths(index_, kHeaderBytes + 4 * block * kBlock, sequence - block * kBlock);
  for (int64_t i = block * kBlock; i < sequence; ++i) start += lengths.next();
  return start;
}

IndexedDataset::Range IndexedDataset::document(int64_t index) const {
  if (index < 0 || index >= info_.documents)
    fail(ExitCode::usage, "{}: document {}: there are {} (0 to {})", info_.prefix, index, info_.documents,
         info_.documents - 1);
  char raw[16];
  index_.read(raw, layout_of(info_).documents() + 8 * index, 16);
  const int64_t first = load<int64_t>(raw), last = load<int64_t>(raw + 8);
  if (first < 0 || last < first || last > info_.sequences)
    fail(ExitCode::data, "{}: document {} changed since the index was checked", index_.path(), index);
  const int64_t start = sequence_start(first);
  return {start, sequence_start(last) - start};
}

void IndexedDataset::documents(int64_t first, int64_t count, std::vector<Range>& out) const {
  out.clear();
  LT_CHECK(first >= 0 && count >= 0 && first <= info_.documents - count,
           "expected a range within {} documents, got {} from {}", info_.documents, count, first);
  if (count == 0) return;
  const IndexLayout at = layout_of(info_);
  ArrayReader<int64_t> documents(index_, at.documents() + 8 * first, count + 1);
  int64_t sequence = documents.next();
  if (sequence < 0 || sequence > info_.sequences)
    fail(ExitCode::data, "{}: document {} changed since the index was checked", index_.path(), first);
  int64_t start = sequence_start(sequence);
  ArrayReader<int32_t> lengths(index_, at.lengths() + 4 * sequence, info_.sequences - sequence);
  for (int64_t d = 0; d < count; ++d) {
    const int64_t last = documents.next(), begin = start;
    if (last < sequence || last > info_.sequences)
      fail(ExitCode::data, "{}: document {} changed since the index was checked", index_.path(), first + d);
    for (; sequence < last; ++sequence) start += lengths.next();
    out.push_back({begin, start - begin});
  }
}

void IndexedDataset::document_starts(int64_t first, int64_t count, std::vector<int64_t>& out) const {
  out.clear();
  LT_CHECK(first >= 0 && count >= 0 && first <= info_.tokens - count,
           "expected a token range within {} tokens, got {} tokens from {}", info_.tokens, count, first);
  if (count == 0) return;
  // Find the first sequence that begins in the range. If an entry of cumulative_ is at least `first`, that
  // sequence may belong to the previous entry, because sequences can be empty.
  const int64_t block = std::max<int64_t>(
      0, std::lower_bound(cumulative_.begin(), cumulative_.end(), first) - cumulative_.begin() - 1);
  const IndexLayout at = layout_of(info_);
  int64_t sequence = block * kBlock, start = cumulative_[block];
  ArrayReader<int32_t> lengths(index_, at.lengths() + 4 * sequence, info_.sequences - sequence);
  while (sequence < info_.sequences && start < first) start += lengths.next(), ++sequence;

  int64_t low = 0, high = info_.documents;  // the first document that begins there or later
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    char raw[8];
    index_.read(raw, at.documents() + 8 * middle, 8);
    if (load<int64_t>(raw) < sequence) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  ArrayReader<int64_t> documents(index_, at.documents() + 8 * low, info_.documents - low);
  for (; low < info_.documents; ++low) {
    const int64_t begins = documents.next();
    while (sequence < begins && sequence < info_.sequences && start < first + count)
      start += lengths.next(), ++sequence;
    if (sequence < begins || start >= first + count) return;
    if (out.empty() || out.back() != start) out.push_back(start);
  }
}

void LengthStats::add(int64_t length) {
  shortest = buckets.empty() ? length : std::min(shortest, length);
  longest = std::max(longest, length);
  const size_t bucket = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(0, length)));
  if (buckets.size() <= bucket) buckets.resize(bucket + 1);
  ++buckets[bucket];
}

LengthStats IndexedDataset::document_lengths() const {
  const IndexLayout at = layout_of(info_);
  ArrayReader<int32_t> lengths(index_, at.lengths(), info_.sequences);
  ArrayReader<int64_t> documents(index_, at.documents(), info_.documents + 1);
  LengthStats stats;
  int64_t sequence = documents.next();
  for (int64_t d = 0; d < info_.documents; ++d) {
    const int64_t end = std::min(documents.next(), info_.sequences);
    int64_t length = 0;
    for (; sequence < end; ++sequence) length += lengths.next();
    stats.add(length);
  }
  return stats;
}

void IndexedDataset::read_run(int64_t byte_offset, int64_t count, int64_t vocab_limit, int32_t* out) const {
  char raw[1 << 15];
  const int64_t item = token_bytes(info_.type);
  while (count > 0) {
    const int64_t n = std::min<int64_t>(count, sizeof raw / item);
    bin_.read(raw, byte_offset, n * item);
    const int64_t bad = convert_any(info_.type, raw, n, vocab_limit, out);
    if (bad >= 0)
      fail(ExitCode::data,
           "{}: byte offset {}: token {} is outside the vocabulary of {} (ids 0 to {}): other tokenizer, or "
           "damaged file",
           bin_.path(), byte_offset + bad * item, token_value(info_.type, raw + bad * item), vocab_limit,
           vocab_limit - 1);
    byte_offset += n * item;
    out += n;
    count -= n;
  }
}

void IndexedDataset::read(int64_t first, int64_t count, int64_t vocab_limit, int32_t* out) const {
  LT_CHECK(first >= 0 && count >= 0 && first <= info_.tokens - count,
           "expected a token range within {} tokens, got {} tokens from {}", info_.tokens, count, first);
  LT_CHECK(vocab_limit > 0 && vocab_limit <= int64_t{1} << 31,
           "expected a vocabulary limit from 1 to 2^31, got {}", vocab_limit);
  const int64_t item = token_bytes(info_.type);
  if (contiguous_) return read_run(first * item, count, vocab_limit, out);
  if (count == 0) return;

  const int64_t block =
      std::upper_bound(cumulative_.begin(), cumulative_.end(), first) - cumulative_.begin() - 1;
  const int64_t sequence = block * kBlock;
  int64_t start = cumulative_[block];
  ArrayReader<int32_t> lengths(index_, kHeaderBytes + 4 * sequence, info_.sequences - sequence);
  ArrayReader<int64_t> pointers(index_, kHeaderBytes + 4 * info_.sequences + 8 * sequence,
                                info_.sequences - sequence);
  while (count > 0) {
    const int64_t length = lengths.next(), pointer = pointers.next();
    if (first < start + length) {
      const int64_t n = std::min(count, start + length - first);
      read_run(pointer + (first - start) * item, n, vocab_limit, out);
      first += n;
      out += n;
      count -= n;
    }
    start += length;
  }
}

TokenScan IndexedDataset::scan() const {
  TokenScan result;
  const int64_t item = token_bytes(info_.type);
  std::vector<char> raw(1 << 20);
  std::vector<int32_t> tokens(raw.size() / item);
  XXH3_state_t* hash = XXH3_createState();
  XXH3_64bits_reset(hash);
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> guard(hash, &XXH3_freeState);
  for (int64_t at = 0; at < bin_.size();) {
    const int64_t n = std::min<int64_t>(raw.size(), bin_.size() - at);
    bin_.read(raw.data(), at, n);
    XXH3_64bits_update(hash, raw.data(), n);
    const int64_t bad = convert_any(info_.type, raw.data(), n / item, int64_t{1} << 31, tokens.data());
    if (bad >= 0)
      fail(ExitCode::data, "{}: byte offset {}: token {}; ids are 0 to 2^31 - 1", bin_.path(),
           at + bad * item, token_value(info_.type, raw.data() + bad * item));
    if (n >= item)
      result.max_token =
          std::max<int64_t>(result.max_token, *std::max_element(tokens.begin(), tokens.begin() + n / item));
    at += n;
  }
  result.bin_hash = fmt::format("{:016x}", XXH3_64bits_digest(hash));
  return result;
}

}  // namespace ltrain::data
