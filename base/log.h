// Log lines of this process on stderr, through spdlog.
#pragma once
#include <string_view>

namespace ltrain {

enum class LogLevel { info, warning, error };

/// Writes a message of one or more lines, made printable (base/printable.h), without time and level. Waits at
/// most a second for a reader, and drops the rest then. Any thread may call it.
void log_lines(LogLevel level, std::string_view text);
/// Hides messages below the level that LTRAIN_LOG_LEVEL names: info (default), warning or error. Throws Error
/// (usage) for another value. Called once, when the program starts.
void read_log_level();

}  // namespace ltrain
