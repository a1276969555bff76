// Text from outside (recipes, data, other hosts, the environment) on its way into a message.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace ltrain {

/// The text on one line, with nothing that a terminal obeys: control characters (ESC among them), line ends,
/// marks that change the direction of writing and bytes that are no UTF-8 become escapes ("\x1b", "\n",
/// "\u202e"). Other characters of any language stay as they are. Of a text longer than `most` bytes the
/// beginning, and how long it is: "aaa... (120087 bytes)". A message is bounded whoever wrote the text.
std::string printable(std::string_view text, size_t most = 1000);

}  // namespace ltrain
