// Training of a tokenizer on the user's text: `ltrain tokenizer train`.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/data/input/text_input.h"

namespace ltrain::data {

struct TrainTokenizerOptions {
  std::vector<std::string> inputs, include, exclude;
  std::string pattern = "llama3";  ///< argument of byte_level_layout(): a name or a regular expression
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  std::string bos_token, eos_token;  ///< must be special tokens; eos "": the first one
  int64_t vocab_size = 32768, min_frequency = 2;
  int workers = 0;  ///< 0: one per core
  RecordOptions records;
  int64_t chunk_bytes = 1 << 20;
  size_t most_bytes = size_t{2} << 30;                  ///< limit of PieceCounts::bytes()
  std::function<void(int64_t done, int64_t all)> read;  ///< progress in bytes of the input
  std::function<void(int64_t done, int64_t all)> made;  ///< progress in tokens
};

struct TrainedTokenizer {
  std::string tokenizer_json, tokenizer_config_json;
  InputList inputs;
  int64_t ids = 0, merges = 0, pieces = 0;
  BadRecords bad_records;
  int64_t left_out = 0;  ///< rare pieces that were dropped to save memory
};

/// Trains a byte-level BPE tokenizer. The result is the same for every number of workers. Throws Error
/// (usage) for invalid options and for empty input.
TrainedTokenizer train_tokenizer(const TrainTokenizerOptions& options);

}  // namespace ltrain::data
