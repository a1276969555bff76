// A tiktoken rank file, which has neither pattern nor special tokens, as a tokenizer.json with both.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace ltrain::data {

struct RankImport {
  /// gpt2, cl100k, llama3, qwen2 or o200k, which stand for the published pattern, special tokens and
  /// normalization; else a regular expression.
  std::string pattern;
  std::vector<std::string> special_tokens;  ///< ids from the last rank on; none: those of the name
  std::string bos_token, eos_token;         ///< "": those of the name
};

struct ImportedTokenizer {
  std::string tokenizer_json, tokenizer_config_json;
  int64_t ids = 0;
};

/// Of `tokens` by rank, as read_rank_file() gives them. `name` is the rank file, for messages. Error (usage)
/// for what cannot be as asked, Error (data) for what the file has.
ImportedTokenizer import_ranks(const std::vector<std::string>& tokens, const RankImport& how,
                               const std::string& name);

}  // namespace ltrain::data
