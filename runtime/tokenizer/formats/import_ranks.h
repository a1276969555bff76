// Conversion of a tiktoken rank file to a tokenizer.json. A rank file has neither a pattern nor special
// tokens, so they are given here.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace ltrain::data {

struct RankImport {
  /// gpt2, cl100k, llama3, qwen2 or o200k for the published pattern, special tokens and normalization; else a
  /// regular expression.
  std::string pattern;
  std::vector<std::string> special_tokens;  ///< ids follow the last rank; empty: special tokens of the name
  std::string bos_token, eos_token;         ///< "": tokens of the name
};

struct ImportedTokenizer {
  std::string tokenizer_json, tokenizer_config_json;
  int64_t ids = 0;
};

/// Converts `tokens` by rank, as returned by read_rank_file(). `name`: rank file, for messages. Throws Error
/// (usage) for invalid options, Error (data) for invalid contents.
ImportedTokenizer import_ranks(const std::vector<std::string>& tokens, const RankImport& how,
                               const std::string& name);

}  // namespace ltrain::data
