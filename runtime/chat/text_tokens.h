// Ids of a text whose bytes are partly from data, with the bytes of each token.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace ltrain::chat {

struct TextTokens {
  std::vector<int32_t> ids;
  std::vector<size_t> begins, ends;  ///< bytes of each token; white space that a tokenizer adds has none
  std::vector<bool> special;
};

/// Encodes a text; special tokens are found where `allowed` permits them. `bounds`: sorted byte positions at
/// which exact ends of tokens matter, for tokenizers that change the text (normalization); elsewhere ends may
/// then be those of the next bound. `named`: texts of special tokens for tokenizers that find none by
/// themselves. Throws Error (data) if the bytes of tokens cannot be found.
TextTokens encode_text(data::Tokenizer& tokenizer, std::string_view text,
                       const std::function<bool(size_t, size_t)>& allowed, const std::vector<size_t>& bounds,
                       const std::vector<std::string>& named, const std::string& where);

}  // namespace ltrain::chat
