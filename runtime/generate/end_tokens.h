// Tokens that end a generated text, from the files of a model and its tokenizer.
#pragma once
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace ltrain {

struct EndToken {
  int32_t id = 0;
  std::string source;  ///< "eos_token_id of my-model/config.json"
};

/// End tokens of a Hugging Face folder, without duplicates, in this order: eos_token_id (a number or a list)
/// of config.json and generation_config.json, eos_token of special_tokens_map.json, and tokens of the chat
/// template (chat_template.jinja or tokenizer_config.json) that are known to end a turn. Missing files are
/// skipped. Throws Error (data) with file and key for a value of another type.
std::vector<EndToken> end_tokens_of_folder(const std::string& folder, const data::Tokenizer& tokenizer);

}  // namespace ltrain
