// A byte-level BPE tokenizer as a tokenizer.json.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ltrain::data {

/// A special token by its distance from the last token that is none.
using SpecialToken = std::pair<int64_t, std::string>;

/// How text is divided, and what is special, under a published name or as given.
struct ByteLevelLayout {
  std::string_view name;  ///< "": as given
  std::string pattern;    ///< a regular expression
  bool nfc = false;
  std::string bos, eos;
  std::vector<SpecialToken> specials;
};

/// Of gpt2, cl100k, llama3, qwen2 or o200k, or of a regular expression. Error (usage) for a name that is not
/// known, (data) for what is no pattern or not supported.
ByteLevelLayout byte_level_layout(const std::string& name_or_pattern);
/// Error (usage) unless each token that is given is one of the layout's special ones; "" leaves the layout's.
void set_document_tokens(ByteLevelLayout& layout, const std::string& bos, const std::string& eos);
/// Error (usage) that names `of`, for a special token without text, or that is no UTF-8, or is in `vocab`.
void check_special_token(const std::string& token, const nlohmann::json& vocab, const std::string& of);

/// GPT-2's alphabet of bytes: the code point that stands for each byte in a byte-level tokenizer.
const uint32_t* byte_level_alphabet();
/// Bytes as a byte-level vocabulary writes them.
std::string byte_level_text(std::string_view bytes);

/// The two files; `vocab` of tokens and ids, `merges` as a list of pairs. `specials`: ids and tokens, which
/// are in `vocab` too.
std::string tokenizer_json_text(const ByteLevelLayout& layout, const nlohmann::json& vocab,
                                const nlohmann::json& merges, const std::vector<SpecialToken>& specials,
                                bool ignore_merges);
std::string tokenizer_config_text(const ByteLevelLayout& layout);

}  // namespace ltrain::data
