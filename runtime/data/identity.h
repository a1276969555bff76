// What tokens a run reads and in which order: so much of it that a resume sees when they are others.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/indexed_dataset.h"

namespace ltrain::data {

struct TokenizerIdentity {
  std::string kind;         ///< "byte", "gpt2", "huggingface"
  std::string hash;         ///< Tokenizer::hash(); empty: not known
  int64_t vocab_size = -1;  ///< -1: not known
  int64_t eod = -1;         ///< the end-of-document token; -1: none, or not known
  int64_t bos = -1;         ///< the token that begins each document; -1: none, or not known
  bool operator==(const TokenizerIdentity&) const = default;
};

struct SourceIdentity {
  std::string path;  ///< as the recipe has it
  double weight = 1;
  std::string content;  ///< content_identity()
  int64_t tokens = 0, documents = 0;
  bool operator==(const SourceIdentity&) const = default;
};

struct DataIdentity {
  std::vector<SourceIdentity> sources;  ///< of training, in order
  TokenizerIdentity tokenizer;
  int64_t seq_length = 0, seed = 0;
  bool reset_attention_mask = false, reset_position_ids = false, eod_mask_loss = false;
  bool operator==(const DataIdentity&) const = default;
};

/// 32 hex digits that follow from the sizes of PREFIX.idx and PREFIX.bin and from 64 evenly spaced blocks of
/// 16 KiB of each (all of a file up to 1 MiB), and not from where they lie or what they are called. The cost
/// is the same for gigabytes and for terabytes; a change of a few tokens between blocks is not seen.
std::string content_identity(const std::string& path);

/// What differs, each as "key old -> new" by the recipe's keys; paths alone make no difference.
std::vector<std::string> differences(const DataIdentity& before, const DataIdentity& now);

}  // namespace ltrain::data
