#include "app/run_replicas.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/secret.h"
#include "runtime/launch/cgroup.h"
#include "runtime/launch/supervisor/caught_signals.h"
#include "runtime/launch/supervisor/child_process.h"
#include "runtime/replicas/replica_group.h"

namespace ltrain::app {
namespace {

/// The launcher of one replica.
struct Replica {
  int number = 0;
  ChildProcess process;
  std::string output, error;  // begun lines
  bool runs = true;
  int code = 0;
};

/// Reads a part of what there is, and calls `line` for each complete line. Returns false if there is no more.
template <class Line>
bool read_lines(Fd& fd, std::string& begun, const Line& line) {
  char buffer[65536];
  const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
  if (n < 0) return false;
  begun.append(buffer, static_cast<size_t>(n));
  for (size_t end; (end = begun.find('\n')) != std::string::npos; begun.erase(0, end + 1))
    line(begun.substr(0, end));
  if (n == 0 && !begun.empty()) line(std::exchange(begun, ""));
  if (n == 0) fd.reset();
  return n > 0;
}

class Replicas {
 public:
  Replicas(const Recipe& recipe, const std::vector<std::string>& arguments, const ReplicaPlaces& places)
      : recipe_(recipe),
        places_(places),
        token_(to_hex(random_bytes(kSecretBytes))),
        server_(settings_of(recipe), 0, token_),
        signals_({SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    for (int i = 0; i < recipe.replicas.count; ++i) start(i, arguments);
  }

  int run() {
    while (std::any_of(all_.begin(), all_.end(), [](const Replica& r) { return r.runs; })) wait_once();
    return code();
  }

 private:
  static QuorumSettings settings_of(const Recipe& r) {
    QuorumSettings s = quorum_settings(r);
    s.log = [](const std::string& text) { log_lines(LogLevel::info, "replicas: " + text); };
    return s;
  }

  void start(int number, std::vector<std::string> arguments) {
    arguments.push_back(fmt::format("output_dir={}/replica_{}", recipe_.output_dir, number));
    if (recipe_.launch.threads_per_rank == 0)
      arguments.push_back(
          fmt::format("launch.threads_per_rank={}",
                      std::max<int64_t>(1, usable_cores() / (places_.ranks * recipe_.replicas.count))));
    Replica& r = all_.emplace_back();
    r.number = number;
    std::vector<std::pair<std::string, std::string>> variables{
        {"LTRAIN_QUORUM", fmt::format("127.0.0.1:{}", server_.port())},
        {"LTRAIN_REPLICA", std::to_string(number)},
        {"LTRAIN_QUORUM_TOKEN", token_}};
    if (places_.gpus > 0) {
      const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
      variables.emplace_back("CUDA_VISIBLE_DEVICES",
                             devices_of_replica(visible ? visible : "", number, places_.ranks));
    }
    r.process = start_child(arguments, variables);
  }

  void wait_once() {
    std::vector<pollfd> all{{signals_.fd(), POLLIN, 0}};
    for (const Replica& r : all_)
      for (const int fd : {r.process.output.get(), r.process.error.get()})
        if (fd >= 0) all.push_back({fd, POLLIN, 0});
    ::poll(all.data(), all.size(), 200);
    for (const int s : signals_.take())
      if (s != SIGCHLD) pass_on(s);
    for (Replica& r : all_) {
      while (r.process.output.valid() && read_lines(r.process.output, r.output, [&](const std::string& line) {
               print(stdout, r, line);
             })) {
      }
      while (r.process.error.valid() &&
             read_lines(r.process.error, r.error, [&](const std::string& line) { print(stderr, r, line); })) {
      }
      reap(r);
    }
  }

  /// Progress is that of all replicas, and the first that runs tells of it. Of the others the launcher's own
  /// lines are of interest: logs have the rest.
  void print(std::FILE* to, const Replica& r, const std::string& line) const {
    const auto teller = std::find_if(all_.begin(), all_.end(), [](const Replica& x) { return x.runs; });
    if (teller != all_.end() && teller->number == r.number)
      std::fprintf(to, "%s\n", line.c_str());
    else if (line.starts_with("ltrain: "))
      std::fprintf(to, "replica %d: %s\n", r.number, line.c_str());
    std::fflush(to);
  }

  void reap(Replica& r) {
    int status = 0;
    if (!r.runs || r.process.output.valid() || r.process.error.valid() ||
        ::waitpid(r.process.pid, &status, WNOHANG) != r.process.pid)
      return;
    r.runs = false;
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(ExitCode::rank_lost);
    if (r.code != 0)
      log_lines(LogLevel::warning,
                fmt::format("replicas: replica {} has ended: {}", r.number,
                            WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                                : exit_code_text(r.code)));
  }

  void pass_on(int signal) const {
    for (const Replica& r : all_)
      if (r.runs) ::kill(r.process.pid, signal == SIGINT ? SIGTERM : signal);
  }

  /// 0 if enough replicas are done; 75 if one of them has saved for a signal; else the first failure.
  int code() const {
    const auto with = [&](ExitCode c) {
      return std::count_if(all_.begin(), all_.end(),
                           [&](const Replica& r) { return r.code == static_cast<int>(c); });
    };
    if (with(ExitCode::done) >= recipe_.replicas.min) return 0;
    if (with(ExitCode::preempted) > 0) return static_cast<int>(ExitCode::preempted);
    return std::find_if(all_.begin(), all_.end(), [](const Replica& r) { return r.code != 0; })->code;
  }

  const Recipe& recipe_;
  const ReplicaPlaces places_;
  const std::string token_;
  QuorumServer server_;
  CaughtSignals signals_;
  std::vector<Replica> all_;
};

}  // namespace

bool starts_replicas(const Recipe& recipe) { return recipe.replicas.on() && !quorum_address(); }

int run_replicas(const Recipe& recipe, const std::vector<std::string>& arguments,
                 const ReplicaPlaces& places) {
  const int64_t needed = recipe.replicas.count * places.ranks;
  if (places.gpus > 0 && places.gpus < needed)
    fail(ExitCode::usage,
         "replicas.count = {}: of {} ranks each need {} GPUs, and this machine has {}; give parallel.data, "
         "the ranks of one replica",
         recipe.replicas.count, places.ranks, needed, places.gpus);
  return Replicas(recipe, arguments, places).run();
}

std::string devices_of_replica(const std::string& visible, int replica, int ranks) {
  std::vector<std::string> all;
  for (size_t begin = 0; begin < visible.size();) {
    const size_t end = std::min(visible.find(',', begin), visible.size());
    all.push_back(visible.substr(begin, end - begin));
    begin = end + 1;
  }
  std::string mine;
  for (int i = replica * ranks; i < (replica + 1) * ranks; ++i)
    mine += (mine.empty() ? "" : ",") + (all.empty() ? std::to_string(i) : all.at(static_cast<size_t>(i)));
  return mine;
}

void check_replica_variables(const Recipe& recipe, const std::string& starter) {
  if (!starts_replicas(recipe)) return;
  fail(ExitCode::usage,
       "replicas.count = {}: processes that {} starts must be told their replica: start `ltrain quorum` with "
       "the recipe on one machine, and set LTRAIN_QUORUM=host:port, LTRAIN_REPLICA=0, 1, ... and "
       "LTRAIN_QUORUM_TOKEN",
       recipe.replicas.count, starter);
}

}  // namespace ltrain::app
