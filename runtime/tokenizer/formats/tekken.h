// Mistral's tekken.json: ranks of byte-level BPE tokens behind a run of special tokens.
#pragma once
#include <memory>
#include <string>

#include "runtime/tokenizer/formats/huggingface_tokenizer.h"

namespace ltrain::data {

/// The file's name has "tekken" in it and ends with .json, by which mistral-common knows it too.
bool is_tekken_file(const std::string& path);

/// Reads `text`, a tekken.json; `name` is for messages. Ids are those of mistral-common's Tekkenizer: special
/// tokens first, config.default_num_special_tokens of them, then tokens by rank, config.default_vocab_size in
/// all. Special tokens in text are text. <s> begins a text and </s> ends one. Throws Error (data) for damaged
/// or unknown contents.
std::shared_ptr<HuggingfaceTables> read_tekken(const std::string& text, const std::string& name);

}  // namespace ltrain::data
