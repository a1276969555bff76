// Runs the real program with a fault armed; says how it ended, how long it took, and what it left behind.
#pragma once
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/time_scale.h"
#include "tests/support/free_port.h"

namespace ltrain::test {

/// A number of seconds times LTRAIN_TIME_SCALE, as a variable's value.
inline std::string scaled(double seconds) { return fmt::format("{:g}", seconds * time_scale()); }

using Pairs = std::vector<std::pair<std::string, std::string>>;

struct RunResult {
  int code = -1;  ///< exit code, or 1000 + signal
  double seconds = 0;
  std::string output, error;
};

/// Process ids whose environment has LTRAIN_TEST_MARK=mark.
inline std::vector<int> marked_processes(const std::string& mark) {
  std::vector<int> found;
  DIR* proc = ::opendir("/proc");
  while (dirent* entry = ::readdir(proc)) {
    const int pid = std::atoi(entry->d_name);
    if (pid <= 0 || pid == ::getpid()) continue;
    std::ifstream file("/proc/" + std::string(entry->d_name) + "/environ");
    std::stringstream text;
    text << file.rdbuf();
    if (text.str().find("LTRAIN_TEST_MARK=" + mark) == std::string::npos) continue;
    std::ifstream status("/proc/" + std::string(entry->d_name) + "/stat");
    std::string stat;
    std::getline(status, stat);
    const size_t end = stat.rfind(')');
    if (end != std::string::npos && end + 2 < stat.size() && stat[end + 2] == 'Z') continue;
    found.push_back(pid);
  }
  ::closedir(proc);
  return found;
}

/// A running program; its output is read when it ends.
class Program {
 public:
  Program(const std::vector<std::string>& arguments, Pairs variables = {}) {
    static std::atomic<int> count{0};
    mark_ = std::to_string(::getpid()) + "-" + std::to_string(++count);
    variables.emplace_back("LTRAIN_TEST_MARK", mark_);
    std::vector<std::string> words{LTRAIN_BINARY};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (auto& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    int out[2], err[2];
    if (::pipe2(out, O_CLOEXEC) || ::pipe2(err, O_CLOEXEC)) std::abort();
    begin_ = std::chrono::steady_clock::now();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setpgid(0, 0);
      ::dup2(out[1], 1);
      ::dup2(err[1], 2);
      for (const auto& [k, v] : variables) ::setenv(k.c_str(), v.c_str(), 1);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(out[1]);
    ::close(err[1]);
    readers_.emplace_back([this, fd = out[0]] { read_all(fd, result_.output); });
    readers_.emplace_back([this, fd = err[0]] { read_all(fd, result_.error); });
  }

  ~Program() {
    if (!waited_) {
      ::kill(-pid_, SIGKILL);
      wait();
    }
  }

  int pid() const { return pid_; }
  const std::string& mark() const { return mark_; }

  /// The ranks' process ids, found by their parent.
  std::vector<int> ranks() const {
    std::vector<int> list;
    for (int p : marked_processes(mark_))
      if (p != pid_) list.push_back(p);
    return list;
  }

  RunResult wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    for (auto& t : readers_) t.join();
    waited_ = true;
    result_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    return result_;
  }

 private:
  static void read_all(int fd, std::string& text) {
    char buffer[4096];
    ssize_t n;
    while ((n = ::read(fd, buffer, sizeof(buffer))) > 0) text.append(buffer, static_cast<size_t>(n));
    ::close(fd);
  }

  std::string mark_;
  pid_t pid_ = -1;
  std::chrono::steady_clock::time_point begin_;
  std::vector<std::thread> readers_;
  RunResult result_;
  bool waited_ = false;
};

/// Returns whether the process is ltrain and has a handler for the signal, so that it can be sent. A rank has
/// it before it joins. Before its exec a child has the handlers of the test program.
inline bool handles(int pid, int signal) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", error);
  if (error || program != std::filesystem::canonical(LTRAIN_BINARY)) return false;
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("SigCgt:")) return std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1;
  return false;
}

/// True when the process has ended; nobody has waited for it yet.
inline bool ended(int pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid;
}

/// Returns whether the process is stopped, by SIGSTOP or the like.
inline bool stopped(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const size_t end = stat.rfind(')');
  return end != std::string::npos && end + 2 < stat.size() && stat[end + 2] == 'T';
}

inline bool wait_until(double seconds, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return condition();
}

/// Arguments of a job of `ranks` that all-reduces `steps` times, 5 ms apart.
inline std::vector<std::string> selftest(int ranks, int steps = 2000, std::vector<std::string> more = {}) {
  std::vector<std::string> a{"selftest", "allreduce",           "--ranks",        std::to_string(ranks),
                             "--steps",  std::to_string(steps), "--step-seconds", "0.005"};
  a.insert(a.end(), more.begin(), more.end());
  return a;
}

/// True when `ranks` ranks of `p` run and catch signals.
inline bool started(const Program& p, size_t ranks) {
  return wait_until(10 * time_scale(), [&] {
    const std::vector<int> found = p.ranks();
    return found.size() == ranks &&
           std::all_of(found.begin(), found.end(), [](int pid) { return handles(pid, SIGTERM); });
  });
}

/// The last `n` lines.
inline std::string last_lines(const std::string& text, int n) {
  size_t at = text.size();
  for (int i = 0; i <= n && at != std::string::npos && at > 0; ++i) at = text.rfind('\n', at - 1);
  return at == std::string::npos || at == 0 ? text : text.substr(at + 1);
}

}  // namespace ltrain::test
