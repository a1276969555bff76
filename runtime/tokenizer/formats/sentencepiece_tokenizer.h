// A tokenizer described by a SentencePiece model (Kudo and Richardson 2018). Ids are those of its library's
// encode().
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "runtime/tokenizer/tokenizer.h"

namespace ltrain::data {

/// Makes a tokenizer from the bytes of a model file. `name`: for messages. Throws Error (data) with the
/// damaged or unsupported part, and Error (usage) for a document token that the model does not have.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view file, const std::string& name,
                                                        const DocumentTokens& tokens = {});

}  // namespace ltrain::data
