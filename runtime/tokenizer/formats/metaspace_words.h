// Words of text in which spaces are written as U+2581, as in SentencePiece.
#pragma once
#include <algorithm>
#include <string_view>

namespace ltrain::data {

inline constexpr std::string_view kMetaspace = "\xe2\x96\x81";  ///< U+2581

/// Returns whether the token has other text before a U+2581. If no token has, no merge spans the start of a
/// word.
inline bool goes_over_words(std::string_view token) {
  for (size_t at = 0; (at = token.find(kMetaspace, at)) != std::string_view::npos; at += kMetaspace.size())
    if (at > 0 && !token.substr(0, at).ends_with(kMetaspace)) return true;
  return false;
}

/// Calls `use` with each word: a possibly empty run of U+2581, and the text up to the next one.
template <class F>
void each_metaspace_word(std::string_view text, F&& use) {
  while (!text.empty()) {
    size_t end = 0;
    while (text.substr(end).starts_with(kMetaspace)) end += kMetaspace.size();
    end = std::min(text.find(kMetaspace, end), text.size());
    use(text.substr(0, end));
    text.remove_prefix(end);
  }
}

}  // namespace ltrain::data
