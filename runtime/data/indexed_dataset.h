// Token files: Megatron's indexed dataset, PREFIX.bin (tokens) and PREFIX.idx (lengths, byte offsets,
// documents), ltrain's optional sidecar PREFIX.json (tokenizer, vocabulary size, largest token), and for
// fine-tuning PREFIX.mask: one bit a token, lowest bit first, set where the token counts in the loss. Pairs
// with margins have PREFIX.margins: f64 a pair, little-endian.
//
// .idx, little-endian, unpadded: "MMIDIDX\0\0", u64 version 1, u8 type code, u64 sequences S, u64 documents +
// 1 = D, i32[S] lengths in tokens, i64[S] byte offsets into .bin, i64[D] first sequence of each document, and
// i8[S] modes for multimodal data.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/input/record_filter.h"
#include "runtime/data/sample_packing.h"
#include "runtime/files/file.h"

namespace ltrain::data {

/// Element type of .bin by its code in .idx. The two floating codes (6, 7) are refused.
enum class TokenType : uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };
int64_t token_bytes(TokenType t);
std::string token_type_name(TokenType t);

/// Description of a dataset. Without a sidecar, numbers that only it contains are -1 and strings empty.
struct SourceInfo {
  std::string prefix;
  TokenType type = TokenType::u16;
  int64_t sequences = 0, documents = 0, tokens = 0;
  bool has_sidecar = false;
  std::string tokenizer, tokenizer_hash, bin_hash;
  int64_t vocab_size = -1, eot = -1, max_token = -1;
  int64_t bos = -1;                   ///< token that begins each document; -1: none
  bool split_special_tokens = false;  ///< the build treated special tokens in text as text
  bool loss_mask = false;             ///< PREFIX.mask exists
  /// Documents are packed whole into samples of so many tokens, with padding; 0: they are not.
  int64_t packed_length = 0;
  /// Documents are pairs in the order chosen, rejected; both are in the same sample (pair_segments.h).
  bool preference = false;
  bool margins = false;  ///< PREFIX.margins exists
  /// Documents are labelled examples, two of each in the same sample: its text, whose first token has the
  /// label in the place of its mask bit, and its prompt with the completion of another example.
  bool unpaired = false;
  FilterCounts filtered;  ///< records that RecordOptions::where and DocumentChoice left out

  /// Number of samples of seq_length + 1 tokens, each starting seq_length after the previous one.
  int64_t samples(int64_t seq_length) const { return tokens < 1 ? 0 : (tokens - 1) / seq_length; }
};

/// Reads only header, sizes and sidecar, so it is fast for any size. `path`: PREFIX, PREFIX.bin or
/// PREFIX.idx.
SourceInfo inspect_source(const std::string& path);

/// Returns whether the source has a sample.
bool has_samples(const SourceInfo& info, int64_t seq_length, SamplePacking packing);

/// Throws Error (data) if the sidecar shows that a model of `vocab_size` cannot read the source, or that its
/// documents are packed into samples of another length.
void check_tokens(const SourceInfo& info, int64_t vocab_size, int64_t seq_length);

/// Throws Error (data) if the sidecar shows that a model of `vocab_size` cannot read the source, or if it has
/// no sample.
void check_source(const SourceInfo& info, int64_t vocab_size, int64_t seq_length,
                  SamplePacking packing = SamplePacking::concatenate);

struct TokenScan {
  int64_t max_token = -1;
  std::string bin_hash;  ///< XXH3-64 hash of .bin, 16 hex digits
};

struct LengthStats {
  int64_t shortest = 0, longest = 0;
  std::vector<int64_t> buckets;  ///< [0]: empty documents; [i]: documents of 2^(i-1) .. 2^i - 1 tokens
  void add(int64_t length);
};

/// Reads tokens as one stream: the sequences in the order of the index. Opening reads and checks the full
/// index. Memory is 8 bytes per 4096 sequences. Const methods may run on several threads.
class IndexedDataset {
 public:
  explicit IndexedDataset(const std::string& path);

  const SourceInfo& info() const { return info_; }
  int64_t tokens() const { return info_.tokens; }

  /// Reads tokens [first, first + count) of the stream. Throws Error (data) with the byte offset for a token
  /// outside [0, vocab_limit).
  void read(int64_t first, int64_t count, int64_t vocab_limit, int32_t* out) const;

  /// Reads for the same tokens whether they count in the loss: 1 or 0. Only with SourceInfo::loss_mask.
  void read_mask(int64_t first, int64_t count, uint8_t* out) const;

  /// Margin of each pair. Only with SourceInfo::margins.
  std::vector<double> read_margins() const;

  struct Range {
    int64_t first = 0, count = 0;  ///< token positions in the stream
  };
  Range document(int64_t index) const;
  /// Token ranges of the documents [first, first + count).
  void documents(int64_t first, int64_t count, std::vector<Range>& out) const;

  /// Positions in [first, first + count) at which a document begins, in ascending order without duplicates.
  void document_starts(int64_t first, int64_t count, std::vector<int64_t>& out) const;

  LengthStats document_lengths() const;  ///< reads the index again
  TokenScan scan() const;                ///< reads all of .bin
  int64_t memory_bytes() const { return static_cast<int64_t>(cumulative_.size()) * 8; }

 private:
  void check_index();
  int64_t sequence_start(int64_t sequence) const;
  void read_run(int64_t byte_offset, int64_t count, int64_t vocab_limit, int32_t* out) const;

  SourceInfo info_;
  InputFile index_, bin_;
  std::unique_ptr<InputFile> mask_;
  bool contiguous_ = true;           // sequences are stored in .bin in index order without gaps
  std::vector<int64_t> cumulative_;  // tokens before sequence 4096*i
};

/// PREFIX for a path PREFIX, PREFIX.bin or PREFIX.idx.
std::string dataset_prefix(const std::string& path);

}  // namespace ltrain::data
