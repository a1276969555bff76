// Log lines of this process on stderr, through spdlog.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace ltrain {

enum class LogLevel { info, warning, error };

/// Writes a message of one or more lines, made printable (base/printable.h), without time and level, or as
/// log_text() has it. Waits at most a second for a reader, and drops the rest then. Any thread may call it.
void log_lines(LogLevel level, std::string_view text);
/// Hides messages below the level that LTRAIN_LOG_LEVEL names: info (default), warning or error. Throws Error
/// (usage) for another value. Called once, when the program starts.
void read_log_level();

/// Makes each later message of this process one line of JSON: an object with time (UTC), level, rank, step
/// and message. `rank`: -1: a launcher, whose lines have no rank.
void log_as_json(int rank);
bool logs_json();
/// Step of later lines of JSON; negative: none.
void set_log_step(int64_t step);
/// The bytes of a message in the log, with their line end: printable lines, or a line of JSON.
std::string log_text(LogLevel level, std::string_view message);
/// A message as it stands in the bytes of log_text().
std::string as_logged(std::string_view message);
/// Whole lines of a rank's output as lines of JSON: those of libraries become messages.
std::string json_lines(std::string_view lines, int rank);

}  // namespace ltrain
