// Reads Hugging Face's tokenizer.json.
#pragma once
#include <memory>
#include <string>

#include "runtime/tokenizer/huggingface_tokenizer.h"

namespace ltrain::data {

/// What `text`, a tokenizer.json, says; `name` for messages. Every key is obeyed, or refused by name (Error,
/// data).
std::shared_ptr<HuggingfaceTables> read_tokenizer_json(const std::string& text, const std::string& name);

/// GPT-2's alphabet of bytes: the code point that stands for each byte in a byte-level tokenizer.
const uint32_t* byte_level_alphabet();

}  // namespace ltrain::data
