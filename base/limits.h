// Limits of the shell and the system: which one a process ran into, and how to raise it.
#pragma once
#include <exception>
#include <string>

#include "base/error.h"

namespace ltrain {

/// Hint for the end of a message about a failed system call: "; this process may open 64 files (ulimit -n
/// 65536 raises it)". Empty if `error` has no limit as its cause.
std::string limit_hint(int error);

/// Throws "WHAT: REASON" with the limit. The exit code is usage for a limit on files, processes, threads or
/// memory, where starting again does not help; storage for a limit on file size; else `otherwise`.
[[noreturn]] void fail_system(const std::string& what, int error, ExitCode otherwise);

/// Converts an exception to an Error: unchanged if it is one, with the limit if one is the cause (a thread
/// that cannot start, memory that is refused), else internal.
Error as_error(const std::exception& e);

/// Raises the limit on open files to the most that the system allows: the shell's soft limit is often 1024.
void raise_file_limit();
/// Makes a write beyond the file size limit an error instead of the end of the process.
void take_file_size_as_error();

/// Throws Error (usage) if the limit on address space (ulimit -v) is below the need of a process with `bytes`
/// planned and `threads` threads: libraries without memory end the process without a message.
void check_address_space(int64_t bytes, int threads);

}  // namespace ltrain
