// Output of a byte-level BPE tokenizer as tokenizer.json.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json/json.h"

namespace ltrain::data {

/// A special token and its distance from the last ordinary token.
using SpecialToken = std::pair<int64_t, std::string>;

/// Text splitting and special tokens, under a published name or as given.
struct ByteLevelLayout {
  std::string_view name;  ///< "": as given
  std::string pattern;    ///< a regular expression
  bool nfc = false;
  std::string bos, eos;
  std::vector<SpecialToken> specials;
};

/// Layout of gpt2, cl100k, llama3, qwen2 or o200k, or of a regular expression. Throws Error (usage) for an
/// unknown name, and (data) for an invalid or unsupported pattern.
ByteLevelLayout byte_level_layout(const std::string& name_or_pattern);
/// Sets the document tokens. "" keeps the layout's. Throws Error (usage) unless each given token is a special
/// token of the layout.
void set_document_tokens(ByteLevelLayout& layout, const std::string& bos, const std::string& eos);
/// Throws Error (usage) with the name `of` for a special token that is empty, not UTF-8, or already in
/// `vocab`.
void check_special_token(const std::string& token, const nlohmann::json& vocab, const std::string& of);

/// GPT-2's alphabet of bytes: the code point that represents each byte in a byte-level tokenizer.
const uint32_t* byte_level_alphabet();
/// Bytes as written in a byte-level vocabulary.
std::string byte_level_text(std::string_view bytes);

/// Text of tokenizer.json and tokenizer_config.json. `vocab`: tokens and ids. `merges`: list of pairs.
/// `specials`: ids and tokens, which must be in `vocab` too.
std::string tokenizer_json_text(const ByteLevelLayout& layout, const nlohmann::json& vocab,
                                const nlohmann::json& merges, const std::vector<SpecialToken>& specials,
                                bool ignore_merges);
std::string tokenizer_config_text(const ByteLevelLayout& layout);

}  // namespace ltrain::data
