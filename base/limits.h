// Limits of the shell and the system that a process runs into: which one it was, and what raises it.
#pragma once
#include <exception>
#include <string>

#include "base/error.h"

namespace ltrain {

/// For the end of a message on a failed system call: "; this process may open 64 files (ulimit -n 65536
/// raises it)". Empty where `error` is of no limit.
std::string limit_hint(int error);

/// Throws "WHAT: REASON" with the limit. The exit code is `otherwise`, but usage for a limit on files,
/// processes, threads or memory, since starting again does not help, and storage for one on the size of
/// files.
[[noreturn]] void fail_system(const std::string& what, int error, ExitCode otherwise);

/// An exception as an Error: itself, or what it says of a limit (a thread that cannot be started, memory that
/// is not given); internal for any other.
Error as_error(const std::exception& e);

/// As many open files as the system allows this process: the shell's soft limit is often 1024.
void raise_file_limit();
/// A write beyond the limit on the size of files is an error then, and not the end of the process.
void take_file_size_as_error();

/// Throws Error (usage) when the limit on address space (ulimit -v) is below what a process takes that has
/// `bytes` planned and `threads` threads: libraries that get none do not say so, but end the process.
void check_address_space(int64_t bytes, int threads);

}  // namespace ltrain
