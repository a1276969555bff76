// Errors: one exception type that carries the process exit code, and the checks that throw it.
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace ltrain {

/// Exit code of the process. README documents the codes; a launcher or Slurm acts on them.
enum class ExitCode : int {
  done = 0,
  usage = 64,         ///< recipe or command line
  data = 65,          ///< token files, tokenizers
  internal = 70,      ///< a defect of ltrain or of a kernel
  rank_lost = 71,     ///< a rank died, or hung past its deadline
  storage = 73,       ///< a checkpoint could not be written or read
  preempted = 75,     ///< saved after a signal: start again
  no_progress = 76,   ///< same failure several times: do not start again
  does_not_fit = 78,  ///< the plan exceeds the available memory
};

/// Thrown for every error that ends the command. `what()` is one or more full lines for the user: what was
/// found, the rule that it breaks, and a fix.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Throws Error with a formatted text: fail(ExitCode::data, "{}: {} bytes, expected {}", path, have, want).
template <class... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(code, fmt::format(text, std::forward<Args>(args)...));
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& text);

/// Checks a condition that only a defect of ltrain can break; never for user input.
#define LT_CHECK(condition, ...)                                                                        \
  do {                                                                                                  \
    if (!(condition)) ::ltrain::check_failed(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
  } while (0)

}  // namespace ltrain
