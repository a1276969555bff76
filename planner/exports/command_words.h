// A shell's command line, cut into words.
#pragma once
#include <string>
#include <vector>

namespace ltrain::exports {

/// Quotes, backslashes and comments as in a POSIX shell. Throws Error (usage) at what only a shell can know:
/// variables, other commands, a quote without an end.
std::vector<std::string> command_words(const std::string& line);

}  // namespace ltrain::exports
