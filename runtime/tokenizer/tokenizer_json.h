// Reads Hugging Face's tokenizer.json.
#pragma once
#include <memory>
#include <string>

#include "runtime/tokenizer/huggingface_tokenizer.h"

namespace ltrain::data {

/// What `text`, a tokenizer.json, says; `name` for messages. Every key is obeyed, or refused by name (Error,
/// data).
std::shared_ptr<HuggingfaceTables> read_tokenizer_json(const std::string& text, const std::string& name);

}  // namespace ltrain::data
