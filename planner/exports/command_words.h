// Splitting of a shell command line into words.
#pragma once
#include <string>
#include <vector>

namespace ltrain::exports {

/// Handles quotes, backslashes and comments like a POSIX shell. Throws Error (usage) for text that only a
/// shell can interpret: variables, further commands, an unclosed quote.
std::vector<std::string> command_words(const std::string& line);

}  // namespace ltrain::exports
