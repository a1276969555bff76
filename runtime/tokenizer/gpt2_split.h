// GPT-2's division of text into pieces, by hand:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// Bytes that are not UTF-8 count as neither space, letter nor number.
#pragma once
#include <cstdint>
#include <string_view>

namespace ltrain::data {

/// Bytes of the piece at the beginning of `text`, which is not empty.
int64_t gpt2_piece(std::string_view text);

/// Longest prefix (bytes) that ends between a character that is no space and an ASCII space, or 0. No piece
/// goes over such a place: a piece has spaces only at its beginning. And none looks over it: only spaces look
/// ahead, and the character before the place is none. So the two sides split as the whole does.
int64_t gpt2_safe_cut(std::string_view text);

/// The same for a space of U+0020 alone, at which every pattern of split_patterns.h may be cut.
int64_t word_cut(std::string_view text);

}  // namespace ltrain::data
