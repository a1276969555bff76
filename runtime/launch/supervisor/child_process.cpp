#include "runtime/launch/supervisor/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "base/limits.h"
#include "parallel/comm/socket.h"
#include "runtime/launch/environment/environment.h"

namespace ltrain {

ChildProcess start_child(const std::vector<std::string>& arguments,
                         const std::vector<std::pair<std::string, std::string>>& variables,
                         const HandedDescriptors& handed, bool shares_stdout) {
  // All allocations happen before the fork.
  Variables merged = process_variables();
  merged.erase("_PARENT");
  merged.erase("_USER");
  for (const auto& [k, v] : variables) merged[k] = v;
  for (const auto& [k, fd] : handed) merged[k] = std::to_string(fd);
  std::vector<std::string> strings;
  for (const auto& [k, v] : merged) strings.push_back(k + "=" + v);
  std::vector<char*> environment, argv;
  for (std::string& s : strings) environment.push_back(s.data());
  environment.push_back(nullptr);
  std::vector<std::string> words{"ltrain"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);

  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0) fail_system("a pipe for a rank", errno, ExitCode::internal);
  Fd out_read(out[0]), out_write(out[1]);
  if (::pipe2(err, O_CLOEXEC) != 0) fail_system("a pipe for a rank", errno, ExitCode::internal);
  Fd err_read(err[0]), err_write(err[1]);
  const pid_t parent = ::getpid();
  // A signal that arrives before the child has its handlers stays pending, also through exec: without this
  // the handler of its parent takes it, or it ends the child.
  sigset_t stop_signals, before;
  ::sigemptyset(&stop_signals);
  for (int s : {SIGTERM, SIGUSR1, SIGHUP}) ::sigaddset(&stop_signals, s);
  ::pthread_sigmask(SIG_BLOCK, &stop_signals, &before);
  const pid_t pid = ::fork();
  const int error = errno;
  if (pid != 0) ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) fail_system("a rank cannot be started", error, ExitCode::internal);
  if (pid == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // the parent died before the line above
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::dup2(null, 0);
    if (!shares_stdout) ::dup2(out_write.get(), 1);
    ::dup2(err_write.get(), 2);
    for (const auto& [k, fd] : handed) ::fcntl(fd, F_SETFD, 0);
    for (int s : {SIGTERM, SIGUSR1, SIGCHLD, SIGPIPE}) ::signal(s, SIG_DFL);
    ::signal(SIGUSR2, SIG_IGN);  // until the rank has its handler
    ::signal(SIGINT, SIG_IGN);   // the launcher gets the terminal's SIGINT and passes it on
    ::sigprocmask(SIG_SETMASK, &stop_signals, nullptr);
    ::execve("/proc/self/exe", argv.data(), environment.data());
    ::_exit(127);
  }
  ::setpgid(pid, pid);  // called in both processes, so that neither can be too late
  set_nonblocking(out_read.get());
  set_nonblocking(err_read.get());
  Fd ended(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));  // close-on-exec
  return {pid, std::move(out_read), std::move(err_read), std::move(ended)};
}

}  // namespace ltrain
