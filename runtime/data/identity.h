// Identity of the tokens that a run reads and of their order, with which a resume detects different data.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/indexed_dataset.h"
#include "runtime/files/file.h"

namespace ltrain::data {

struct TokenizerIdentity {
  std::string kind;         ///< name of its kind (tokenizer_kinds.h)
  std::string hash;         ///< Tokenizer::hash(); empty: unknown
  int64_t vocab_size = -1;  ///< -1: unknown
  int64_t eod = -1;         ///< end-of-document token; -1: none or unknown
  int64_t bos = -1;         ///< token that begins each document; -1: none or unknown
  bool operator==(const TokenizerIdentity&) const = default;
};

struct SourceIdentity {
  std::string path;  ///< path in the recipe
  double weight = 1;
  std::string content;  ///< content_identity()
  /// 0 for a source that is read in windows, some of whose token files may not exist yet.
  int64_t tokens = 0, documents = 0;
  bool operator==(const SourceIdentity&) const = default;
};

/// Sources from a global sample on.
struct StageIdentity {
  int64_t first_sample = 0;
  std::vector<SourceIdentity> sources;
  int64_t seq_length = 0;  ///< 0: DataIdentity::seq_length
  bool operator==(const StageIdentity&) const = default;
};

struct DataIdentity {
  std::vector<SourceIdentity> sources;  ///< training sources in order
  std::vector<StageIdentity> stages;    ///< later mixes
  TokenizerIdentity tokenizer;
  int64_t seq_length = 0, seed = 0;
  int64_t train_seq_length = 0;         ///< tokens of a sequence of `sources`; 0: seq_length
  std::string packing = "concatenate";  ///< data.packing
  int64_t shuffle_window = 0;           ///< data.shuffle_window
  bool reset_attention_mask = false, reset_position_ids = false, eod_mask_loss = false;
  bool operator==(const DataIdentity&) const = default;
};

/// 32 hex digits derived from the sizes of PREFIX.idx and PREFIX.bin and from 64 evenly spaced blocks of 16
/// KiB of each (the full file up to 1 MiB). Path and name do not matter. The cost does not depend on the size
/// of the files. Changes of a few tokens between blocks are not detected.
std::string content_identity(const std::string& path);

/// The same of several token files in an order. `by_name`: their names follow from their contents, and are
/// read in the place of the files, which may be missing.
std::string content_identity(const std::vector<std::string>& paths, bool by_name);

/// Hash of 32 hex digits of a file's size and of `blocks` evenly spaced blocks of 16 KiB; of the full file if
/// it has no more.
std::string sample_hash(const InputFile& file, int64_t blocks);

/// Differences, each as "key old -> new" with the recipe's keys. Different paths alone do not count, nor do
/// stages that begin at sample `cursor` or later, which no step has read.
std::vector<std::string> differences(const DataIdentity& before, const DataIdentity& now,
                                     int64_t cursor = INT64_MAX);

}  // namespace ltrain::data
