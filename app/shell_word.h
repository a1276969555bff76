// Quoting of a text as one word of a shell command.
#pragma once
#include <string>

namespace ltrain::app {

/// One shell word for any text: "alice's run" -> 'alice'\''s run'.
inline std::string shell_word(const std::string& text) {
  const bool plain =
      !text.empty() &&
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%") ==
          std::string::npos;
  if (plain) return text;
  std::string out = "'";
  for (char c : text) {
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  }
  return out + "'";
}

}  // namespace ltrain::app
