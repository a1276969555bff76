// Reader of Hugging Face's tokenizer.json.
#pragma once
#include <memory>
#include <string>

#include "runtime/tokenizer/formats/huggingface_tokenizer.h"

namespace ltrain::data {

/// Parses the text of a tokenizer.json. `name`: for messages. Every key is obeyed, or refused by name (Error,
/// data).
std::shared_ptr<HuggingfaceTables> read_tokenizer_json(const std::string& text, const std::string& name);

}  // namespace ltrain::data
