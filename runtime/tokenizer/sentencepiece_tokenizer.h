// A tokenizer as a SentencePiece model describes one (Kudo and Richardson 2018). Ids are those of its
// library's encode().
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "runtime/tokenizer/tokenizer.h"

namespace ltrain::data {

/// Of the bytes of a model file; `name` for messages. Error (data) that names what is damaged or not
/// supported; Error (usage) for a token that it does not have.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view file, const std::string& name,
                                                        const DocumentTokens& tokens = {});

}  // namespace ltrain::data
