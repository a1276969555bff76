#include "base/limits.h"

#include <signal.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <system_error>

namespace ltrain {
namespace {

/// Soft limit; -1: unlimited.
int64_t limit_of(int resource) {
  rlimit r{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &r) != 0 || r.rlim_cur == RLIM_INFINITY)
    return -1;
  return static_cast<int64_t>(r.rlim_cur);
}

/// Process limit of this process's control group; -1: none visible.
int64_t most_processes_of_group() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t path = line.rfind(':');
    if (path == std::string::npos) continue;
    for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/pids"}) {
      std::ifstream file(root + line.substr(path + 1) + "/pids.max");
      int64_t most = 0;
      if (file >> most) return most;
    }
  }
  return -1;
}

std::string megabytes(int64_t bytes) {
  return fmt::format("{:.0f} MiB", static_cast<double>(bytes) / 1048576.0);
}

std::string address_space_hint() {
  const int64_t most = limit_of(RLIMIT_AS);
  return most < 0 ? ""
                  : fmt::format("; this process may have {} of address space (ulimit -v unlimited raises it)",
                                megabytes(most));
}

}  // namespace

std::string limit_hint(int error) {
  switch (error) {
    case EMFILE:
      return fmt::format("; this process may open {} files (ulimit -n 65536 raises it)",
                         limit_of(RLIMIT_NOFILE));
    case ENFILE:
      return "; the system may open no more files (fs.file-max)";
    case EFBIG:
      return fmt::format("; a file may have {} bytes (ulimit -f unlimited raises it)",
                         limit_of(RLIMIT_FSIZE));
    case EAGAIN: {
      std::string hint;
      if (const int64_t most = limit_of(RLIMIT_NPROC); most >= 0)
        hint += fmt::format("; this user may have {} processes and threads (ulimit -u raises it)", most);
      if (const int64_t most = most_processes_of_group(); most >= 0)
        hint += fmt::format("; this control group may have {} processes and threads (pids.max)", most);
      return hint + address_space_hint();
    }
    case ENOMEM:
      return address_space_hint();
    default:
      return "";
  }
}

void fail_system(const std::string& what, int error, ExitCode otherwise) {
  const bool own = error == EMFILE || error == ENFILE || error == EAGAIN || error == ENOMEM;
  fail(own              ? ExitCode::usage
       : error == EFBIG ? ExitCode::storage
                        : otherwise,
       "{}: {}{}", what, std::strerror(error), limit_hint(error));
}

Error as_error(const std::exception& e) {
  if (const auto* error = dynamic_cast<const Error*>(&e)) return *error;
  if (const auto* system = dynamic_cast<const std::system_error*>(&e)) {
    const int code = system->code().value();
    const bool of_system = system->code().category() == std::generic_category() ||
                           system->code().category() == std::system_category();
    if (of_system && code == EAGAIN)  // std::thread gives no other detail
      return Error(ExitCode::usage,
                   fmt::format("a thread cannot be started: {}{}", std::strerror(code), limit_hint(code)));
    if (of_system && (code == EMFILE || code == ENFILE || code == ENOMEM))
      return Error(ExitCode::usage, fmt::format("{}{}", e.what(), limit_hint(code)));
    if (of_system && (code == EFBIG || code == ENOSPC || code == EDQUOT))
      return Error(ExitCode::storage, fmt::format("{}{}", e.what(), limit_hint(code)));
  }
  if (dynamic_cast<const std::bad_alloc*>(&e))
    return Error(
        ExitCode::usage,
        fmt::format("no memory is left{}",
                    limit_of(RLIMIT_AS) < 0
                        ? " on this host, or in its control group: `ltrain plan` says what the recipe needs"
                        : address_space_hint()));
  return Error(ExitCode::internal, fmt::format("internal error: {}", e.what()));
}

void raise_file_limit() {
  rlimit r{};
  if (::getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur == r.rlim_max) return;
  r.rlim_cur = r.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &r);
}

void take_file_size_as_error() { ::signal(SIGXFSZ, SIG_IGN); }

void check_address_space(int64_t bytes, int threads) {
  constexpr int64_t kMiB = 1 << 20;
  constexpr int64_t kProgram = 192 * kMiB;      // the program, its libraries and their tables
  constexpr int64_t kThread = (8 + 64) * kMiB;  // a stack, and the C library's memory arena of a thread
  constexpr int kOtherThreads = 4;              // threads of streams, loader, checkpoints, control channel
  const int64_t most = limit_of(RLIMIT_AS);
  const int64_t needed = bytes + kProgram + kThread * (threads + kOtherThreads);
  if (most >= 0 && most < needed)
    fail(ExitCode::usage,
         "a rank takes about {} of address space ({} planned, {} threads, program and libraries), and a "
         "process may have {} (ulimit -v): raise the limit, e.g. ulimit -v unlimited",
         megabytes(needed), megabytes(bytes), threads + kOtherThreads, megabytes(most));
}

}  // namespace ltrain
