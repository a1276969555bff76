// Safe display of text from outside (recipes, data, other hosts, the environment) in a message.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace ltrain {

/// The text on one line, without anything that a terminal interprets: control characters (ESC included), line
/// ends, marks of writing direction and invalid UTF-8 become escapes ("\x1b", "\n", "\u202e"). Other
/// characters of any language are unchanged. A text longer than `most` bytes is cut, with its length: "aaa...
/// (120087 bytes)". Messages are therefore bounded.
std::string printable(std::string_view text, size_t most = 1000);
/// Lines of a text for people, each printable and ended by a line feed.
std::string printable_lines(std::string_view text);

}  // namespace ltrain
