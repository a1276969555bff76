// Runs a function on every rank of a job, each rank a process, joined the way ranks of another launcher are:
// rank 0 hosts the coordinator.
#pragma once
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/socket.h"
#include "runtime/launch/job.h"
#include "tests/parallel/group_support.h"

namespace ltrain::test {

/// LTRAIN_TRANSPORT for as long as it lives.
class WithTransport {
 public:
  explicit WithTransport(const char* value) {
    if (const char* old = std::getenv("LTRAIN_TRANSPORT")) old_ = old, had_ = true;
    ::setenv("LTRAIN_TRANSPORT", value, 1);
  }
  ~WithTransport() { had_ ? ::setenv("LTRAIN_TRANSPORT", old_.c_str(), 1) : ::unsetenv("LTRAIN_TRANSPORT"); }

 private:
  std::string old_;
  bool had_ = false;
};

/// Flag of this process and its forks: false until one of them sets it.
class SharedFlag {
 public:
  SharedFlag() {
    void* p = ::mmap(nullptr, sizeof(*flag_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::runtime_error("mmap");
    flag_ = new (p) std::atomic<bool>(false);
  }
  ~SharedFlag() { ::munmap(flag_, sizeof(*flag_)); }
  SharedFlag(const SharedFlag&) = delete;
  void say() const { *flag_ = true; }
  void wait() const {
    while (!*flag_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  std::atomic<bool>* flag_;
};

using RankBody = std::function<void(Job&, Communicator&, Stream&)>;

class Processes {
 public:
  /// `before`: what each rank does before it joins, e.g. setting a variable. `by_distance`: as in JobOptions.
  Processes(int size, const RankBody& body, double timeout = 20, const std::function<void(int)>& before = {},
            bool by_distance = false) {
    int port = 0;
    std::string error;
    listen_on("127.0.0.1", {0}, &port, &error);
    LaunchEnvironment e;
    e.kind = LaunchEnvironment::Kind::rank;
    e.source = "test", e.world_size = e.local_size = size;
    e.coordinator_host = "127.0.0.1", e.coordinator_ports = {port}, e.token = "token";
    int told[2];
    if (::pipe(told) != 0) throw std::runtime_error("pipe");
    for (int r = 0; r < size; ++r) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::close(told[0]);
        int code = 0;
        try {
          if (before) before(r);
          JobOptions o;
          e.rank = e.local_rank = r;
          o.environment = e;
          o.hang_seconds = timeout;
          o.by_distance = by_distance;
          auto job = Job::join(o);
          auto stream = make_worker_stream("comm");
          {
            auto group = job->new_world_group();
            body(*job, *group, *stream);
            group->barrier(*stream);
          }
          job->finish();
        } catch (const std::exception& x) {
          code = 9;
          const std::string line = "rank " + std::to_string(r) + ": " + x.what() + "\n";
          [[maybe_unused]] const ssize_t ignored = ::write(told[1], line.data(), line.size());
        }
        ::_exit(code);
      }
      pids.push_back(pid);
    }
    ::close(told[1]);
    told_ = told[0];
  }

  /// Exit codes by rank: 0 for a return, 9 for an exception, 1000 + signal.
  std::vector<int> wait() {
    char buffer[4096];
    ssize_t n;
    while ((n = ::read(told_, buffer, sizeof(buffer))) > 0) texts.append(buffer, static_cast<size_t>(n));
    ::close(told_);
    std::vector<int> codes;
    for (pid_t pid : pids) {
      int status = 0;
      ::waitpid(pid, &status, 0);
      codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
    }
    return codes;
  }

  std::vector<pid_t> pids;
  std::string texts;  ///< after wait(): "rank 1: what it threw", one line each

 private:
  int told_ = -1;
};

}  // namespace ltrain::test
