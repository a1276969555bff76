// GPT-2's splitting of text into pieces, without a regex engine:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// Invalid UTF-8 bytes count as neither space, letter nor number.
#pragma once
#include <cstdint>
#include <string_view>

namespace ltrain::data {

/// Bytes of the first piece of `text`, which must not be empty.
int64_t gpt2_piece(std::string_view text);

/// Longest prefix (bytes) that ends between a non-space character and an ASCII space, or 0. No piece spans
/// this position, because pieces have spaces only at their start. No piece looks ahead past it, because only
/// spaces look ahead and the character before it is not a space. The two sides therefore split like the full
/// text.
int64_t gpt2_safe_cut(std::string_view text);

/// Like gpt2_safe_cut, for a space of U+0020 only. Every pattern of split_patterns.h may be cut there.
int64_t word_cut(std::string_view text);

}  // namespace ltrain::data
