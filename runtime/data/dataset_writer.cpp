#include "runtime/data/dataset_writer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "runtime/data/dataset_metadata.h"

namespace ltrain::data {
namespace {

constexpr int64_t kMegatronU16Limit = 65500;

std::string checked_prefix(std::string prefix, bool force) {
  refuse_overwrite(prefix, force);
  const auto folder = std::filesystem::path(prefix).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error)
    fail(ExitCode::storage, "{}: the folder {} cannot be made: {}", prefix, folder.string(), error.message());
  return prefix;
}

/// Reads back the i32 lengths from the writer's temporary file.
template <class F>
void each_length(const std::string& path, F&& visit) {
  InputFile file(path);
  std::vector<int32_t> block(1 << 16);
  for (int64_t at = 0; at < file.size();) {
    const int64_t n = std::min<int64_t>(block.size() * 4, file.size() - at);
    file.read(block.data(), at, n);
    for (int64_t i = 0; i < n / 4; ++i) visit(block[i]);
    at += n;
  }
}

}  // namespace

void refuse_overwrite(const std::string& prefix, bool force) {
  if (prefix.empty() || prefix.back() == '/')
    fail(ExitCode::usage, "output {}: a prefix of file names is needed, such as data/corpus", prefix);
  if (force) return;
  for (const char* end : {".bin", ".idx", ".json", ".mask", ".margins"})
    if (file_exists(prefix + end))
      fail(ExitCode::data, "{}{}: exists; choose another --output or give --force to replace it", prefix,
           end);
}

DatasetWriter::DatasetWriter(std::string prefix, const Tokenizer& tokenizer, bool append_eot, bool force,
                             bool prepend_bos, bool split_special_tokens)
    : append_eot_(append_eot),
      prepend_bos_(prepend_bos),
      force_(force),
      bin_(checked_prefix(prefix, force) + ".bin"),
      lengths_(prefix + ".lengths"),
      hash_(XXH3_createState(), &XXH3_freeState) {
  info_.prefix = std::move(prefix);
  info_.tokenizer = tokenizer.name();
  info_.tokenizer_hash = tokenizer.hash();
  info_.vocab_size = tokenizer.vocab_size();
  info_.eot = tokenizer.eot();
  info_.bos = prepend_bos ? tokenizer.bos() : -1;
  info_.split_special_tokens = split_special_tokens;
  info_.type = info_.vocab_size < kMegatronU16Limit ? TokenType::u16 : TokenType::i32;
  XXH3_64bits_reset(hash_.get());
}

void DatasetWriter::put(const int32_t* tokens, int64_t count) {
  const int64_t item = token_bytes(info_.type);
  packed_.resize(count * item);
  int32_t most = -1;
  for (int64_t i = 0; i < count; ++i) {
    LT_CHECK(tokens[i] >= 0 && tokens[i] < info_.vocab_size, "expected a token below {}, got {}",
             info_.vocab_size, tokens[i]);
    most = std::max(most, tokens[i]);
    if (item == 2) {
      const uint16_t v = static_cast<uint16_t>(tokens[i]);
      std::memcpy(packed_.data() + i * 2, &v, 2);
    } else {
      std::memcpy(packed_.data() + i * 4, &tokens[i], 4);
    }
  }
  bin_.write(packed_.data(), count * item);
  XXH3_64bits_update(hash_.get(), packed_.data(), count * item);
  info_.max_token = std::max<int64_t>(info_.max_token, most);
  info_.tokens += count;
}

void DatasetWriter::keep_mask(int64_t packed_length) {
  LT_CHECK(info_.tokens == 0, "expected a loss mask before the first token, got {} tokens", info_.tokens);
  info_.loss_mask = true;
  info_.packed_length = packed_length;
  mask_.emplace(info_.prefix + ".mask");
}

void DatasetWriter::put_mask(int64_t count, const uint8_t* counted) {
  for (int64_t i = 0; i < count; ++i) {
    mask_byte_ |= static_cast<uint8_t>((counted ? counted[i] & 1 : 1) << (mask_bits_ % 8));
    if (++mask_bits_ % 8) continue;
    mask_->write(&mask_byte_, 1);
    mask_byte_ = 0;
  }
}

void DatasetWriter::add(const int32_t* tokens, int64_t count, const uint8_t* counted) {
  if (prepend_bos_ && !in_document_ && count > 0) {
    in_document_ = true;
    const int32_t bos = static_cast<int32_t>(info_.bos);
    add(&bos, 1);
  }
  while (count > 0) {
    if (in_sequence_ == max_sequence) end_sequence(false);
    const int64_t n = std::min({count, max_sequence - in_sequence_, int64_t{1} << 18});
    put(tokens, n);
    if (mask_) put_mask(n, counted);
    if (counted) counted += n;
    in_document_ = true;
    in_sequence_ += n;
    tokens += n;
    count -= n;
  }
}

void DatasetWriter::end_sequence(bool ends_document) {
  const int32_t length = static_cast<int32_t>(in_sequence_);
  const int32_t mark = ends_document ? length : ~length;
  lengths_.write(&mark, 4);
  ++info_.sequences;
  in_sequence_ = 0;
}

bool DatasetWriter::end_document() {
  if (!in_document_) return false;
  if (append_eot_) {
    const int32_t eot = static_cast<int32_t>(info_.eot);
    add(&eot, 1);
  }
  end_sequence(true);
  ++info_.documents;
  in_document_ = false;
  return true;
}

SourceInfo DatasetWriter::finish(const FilterCounts& filtered) {
  LT_CHECK(!in_document_, "expected the last document to be ended, got an open one");
  info_.filtered = filtered;
  if (info_.documents == 0 && filtered.left_out() == 0)
    fail(ExitCode::data, "{}: no text in any of the inputs; nothing written", info_.prefix);
  info_.bin_hash = fmt::format("{:016x}", XXH3_64bits_digest(hash_.get()));
  info_.has_sidecar = true;
  info_.margins =
      info_.preference && std::any_of(margins_.begin(), margins_.end(), [](double m) { return m != 0; });
  lengths_.flush();

  OutputFile index(info_.prefix + ".idx");
  const uint64_t version = 1, s = info_.sequences, d = info_.documents + 1;
  const uint8_t code = static_cast<uint8_t>(info_.type);
  index.write("MMIDIDX\0\0", 9);
  index.write(&version, 8);
  index.write(&code, 1);
  index.write(&s, 8);
  index.write(&d, 8);
  each_length(lengths_.path_before_commit(), [&](int32_t mark) {
    const int32_t length = mark < 0 ? ~mark : mark;
    index.write(&length, 4);
  });
  int64_t pointer = 0;
  each_length(lengths_.path_before_commit(), [&](int32_t mark) {
    index.write(&pointer, 8);
    pointer += (mark < 0 ? ~mark : mark) * token_bytes(info_.type);
  });
  int64_t sequence = 0;
  index.write(&sequence, 8);
  each_length(lengths_.path_before_commit(), [&](int32_t mark) {
    ++sequence;
    if (mark >= 0) index.write(&sequence, 8);
  });

  OutputFile sidecar(info_.prefix + ".json");
  const std::string text = write_sidecar_text(info_, append_eot_);
  sidecar.write(text.data(), static_cast<int64_t>(text.size()));
  index.sync();
  sidecar.sync();
  if (force_) ::unlink((info_.prefix + ".idx").c_str());
  if (mask_) {
    if (mask_bits_ % 8) mask_->write(&mask_byte_, 1);
    mask_->commit();
  }
  if (info_.margins) {
    OutputFile margins(info_.prefix + ".margins");
    margins.write(margins_.data(), static_cast<int64_t>(margins_.size() * sizeof(double)));
    margins.commit();
  }
  bin_.commit();
  sidecar.commit();
  index.commit();
  return info_;
}

}  // namespace ltrain::data
