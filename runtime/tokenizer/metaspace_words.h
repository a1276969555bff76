// Words of text in which spaces are written as U+2581, as SentencePiece and its like have them.
#pragma once
#include <algorithm>
#include <string_view>

namespace ltrain::data {

inline constexpr std::string_view kMetaspace = "\xe2\x96\x81";  ///< U+2581

/// Has a token something else before a U+2581? Where none has, nothing merges over the begin of a word.
inline bool goes_over_words(std::string_view token) {
  for (size_t at = 0; (at = token.find(kMetaspace, at)) != std::string_view::npos; at += kMetaspace.size())
    if (at > 0 && !token.substr(0, at).ends_with(kMetaspace)) return true;
  return false;
}

/// Calls `use` with each word: a run of U+2581, perhaps empty, and what follows up to the next one.
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
