#include "runtime/launch/supervisor/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "base/exit_codes.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/secret.h"
#include "base/time_scale.h"
#include "runtime/launch/cgroup.h"
#include "runtime/launch/coordinator.h"
#include "runtime/launch/environment/environment.h"
#include "runtime/launch/environment/hostlist.h"
#include "runtime/launch/flight_dump.h"
#include "runtime/launch/handed.h"
#include "runtime/launch/supervisor/attempts.h"
#include "runtime/launch/supervisor/caught_signals.h"
#include "runtime/launch/supervisor/child_process.h"
#include "runtime/launch/supervisor/output.h"
#include "runtime/launch/supervisor/rank_log.h"

namespace ltrain {

namespace {

constexpr size_t kTailBytes = 4096;
constexpr size_t kWaitingBytes = 1 << 20;    // output of a rank until its log may be opened
constexpr double kStalledOutputSeconds = 1;  // limit at the end of the run if nobody reads

struct Child {
  ChildProcess process;
  RankLog log;
  std::string log_path;
  std::string waiting;  // output for the log, which is not open yet
  PlainText plain[2];   // filters of stdout and stderr for the log
  std::string tail;     // end of its stderr, for the report of a rank that never joined
  bool alive = true;
};

class Supervisor {
 public:
  /// `signals`: set; reset at the end unless `keeps_signals`, for a launcher that may start another attempt.
  Supervisor(const SuperviseOptions& options, std::optional<CaughtSignals>& signals, bool keeps_signals)
      : o_(checked(options)),
        bounds_(liveness_bounds()),
        output_(1),
        error_(2),
        signals_(signals),
        keeps_signals_(keeps_signals) {}

  AttemptEnd run() {
    o_.join_seconds = join_seconds(process_variables(), o_.join_seconds);
    if (o_.token.empty()) {
      if (o_.nodes > 1) fail(ExitCode::usage, "several nodes need a token that all launchers know");
      o_.token = to_hex(random_bytes(16));
    }
    std::string coordinator = fmt::format("{}:{}", o_.coordinator_host, o_.coordinator_port);
    if (o_.node == 0) {
      CoordinatorOptions c;
      c.address = o_.nodes == 1 ? "127.0.0.1" : "";
      c.ports = {o_.nodes == 1 ? 0 : o_.coordinator_port};
      c.token = o_.token;
      c.settings = o_.settings;
      c.owner = "the launcher";
      c.world_size = o_.ranks * o_.nodes;
      c.join_seconds = o_.join_seconds;
      c.log = [this](const std::string& line) { print_line("ltrain: " + line); };
      coordinator_ = std::make_unique<Coordinator>(std::move(c));
      coordinator = fmt::format("127.0.0.1:{}", coordinator_->port());
    }
    oom_before_ = out_of_memory_kills();
    start_ranks(coordinator);
    while (alive_ > 0) turn();
    for (int i = 0; i < o_.ranks; ++i) drain(i);
    AttemptEnd end;
    end.code = static_cast<ExitCode>(conclude());
    end.asked_to_stop = stop_asked_ || killed_by_user_ || ended_by_ != 0;
    if (coordinator_) {
      const Verdict v = coordinator_->verdict();
      end.how = v.how;
      if (!v.lines.empty()) end.line = v.lines[0].substr(0, v.lines[0].find('\n'));
      end.first_step = fact(kFirstStep, -1), end.end_step = fact(kEndStep, 0);
      end.saved_step = fact(kSavedStep, -1), end.saved = end.saved_step >= 0;
      end.lines = fmt::format("{}", fmt::join(v.lines, "\n"));
    }
    for (OutputRelay* r : {&output_, &error_}) r->drain(kStalledOutputSeconds * time_scale());
    return end;
  }

 private:
  static const SuperviseOptions& checked(const SuperviseOptions& o) {
    if (o.ranks < 1 || o.nodes < 1 || o.node < 0 || o.node >= o.nodes ||
        static_cast<int64_t>(o.ranks) * o.nodes > kMaxRanks)
      fail(ExitCode::usage, "cannot start {} ranks on node {} of {}: a job has at most {} ranks", o.ranks,
           o.node, o.nodes, kMaxRanks);
    return o;
  }

  // ---- starting ----

  void print_line(const std::string& line, LogLevel level = LogLevel::info) {
    error_.write(log_text(level, line));
  }

  void start_ranks(const std::string& coordinator) {
    int threads = o_.threads_per_rank;
    if (threads <= 0) threads = std::max(1, usable_cores() / o_.ranks);
    std::vector<std::pair<std::string, std::string>> common{
        {"LTRAIN_WORLD_SIZE", std::to_string(o_.ranks * o_.nodes)},
        {"LTRAIN_LOCAL_SIZE", std::to_string(o_.ranks)},
        {"LTRAIN_NODE", std::to_string(o_.node)},
        {"LTRAIN_COORDINATOR", coordinator},
        {"LTRAIN_TOKEN", o_.token},
        {"LTRAIN_LAUNCHER", "1"},
        {"LTRAIN_ATTEMPT", std::to_string(o_.attempt)},
        {"OMP_NUM_THREADS", std::to_string(threads)}};
    winsize size{};
    if (::isatty(2)) {
      common.emplace_back("LTRAIN_TTY", "1");
      const int columns = ::ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
      if (!std::getenv("COLUMNS")) common.emplace_back("COLUMNS", std::to_string(columns));
    }
    common.insert(common.end(), o_.variables.begin(), o_.variables.end());
    children_.resize(static_cast<size_t>(o_.ranks));
    HandedDescriptors handed = o_.handed;
    Fd told;
    if (o_.node == 0) {
      open_logs();
    } else {
      int ends[2];
      if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        fail_system("a pipe for the ranks", errno, ExitCode::internal);
      joined_ = Fd(ends[0]), told = Fd(ends[1]);
      handed.emplace_back(kJoinedVariable, told.get());
    }
    for (int i = 0; i < o_.ranks; ++i) {
      Child& c = children_[static_cast<size_t>(i)];
      const int rank = rank_of(i);
      auto variables = common;
      variables.emplace_back("LTRAIN_RANK", std::to_string(rank));
      variables.emplace_back("LTRAIN_LOCAL_RANK", std::to_string(i));
      c.process = start_child(o_.arguments, variables, handed, o_.shares_stdout && rank == 0);
      ++alive_;
    }
  }

  /// Opens the logs once the folder is known to belong to this job. Node 0's launcher has its lock. Another
  /// node's launcher knows it once its ranks have joined, because the coordinator starts after the lock is
  /// taken.
  void open_logs() {
    if (o_.run_dir.empty() || logs_open_) return;
    logs_open_ = true;
    std::error_code error;
    std::filesystem::create_directories(o_.run_dir + "/logs", error);
    if (error) fail(ExitCode::storage, "cannot make {}/logs: {}", o_.run_dir, error.message());
    for (int i = 0; i < o_.ranks; ++i) {
      Child& c = children_[static_cast<size_t>(i)];
      c.log_path = fmt::format("{}/logs/rank-{:05d}.log", o_.run_dir, rank_of(i));
      try {
        c.log = RankLog(c.log_path, o_.log_bytes);
      } catch (...) {
        kill_all(SIGKILL);
        throw;
      }
      c.log.write(c.waiting);
      c.waiting.clear();
    }
  }

  int rank_of(int i) const { return o_.node * o_.ranks + i; }

  // ---- one iteration of the loop: signals, output, the coordinator's news, the clock ----

  void turn() {
    std::vector<pollfd> polled{{signals_->fd(), POLLIN, 0},
                               {coordinator_ ? coordinator_->changed_fd() : -1, POLLIN, 0},
                               {joined_.get(), POLLIN, 0}};
    for (Child& c : children_) {
      polled.push_back({c.process.output.get(), POLLIN, 0});
      polled.push_back({c.process.error.get(), POLLIN, 0});
      polled.push_back({c.alive ? c.process.ended.get() : -1, POLLIN, 0});
    }
    int timeout = 500;
    if (kill_at_) timeout = std::min(timeout, poll_timeout(*kill_at_));
    if (term_at_) timeout = std::min(timeout, poll_timeout(*term_at_));
    ::poll(polled.data(), polled.size(), timeout);
    for (size_t i = 0; i < children_.size(); ++i) {
      if (polled[3 + 3 * i].revents) relay(static_cast<int>(i), 1);
      if (polled[4 + 3 * i].revents) relay(static_cast<int>(i), 2);
    }
    read_signals();
    look_at_work();
    reap();
    if (polled[1].revents) coordinator_->clear_changed();
    if (polled[2].revents) {
      char byte;
      if (::read(joined_.get(), &byte, 1) == 1) open_logs();
      joined_.reset();  // a rank has joined, or none will
    }
    if (!ending_) {
      const bool failed = coordinator_ ? coordinator_->verdict().failed : child_failed_;
      if (failed) begin_end();
    }
    if (term_at_ && steady_now() >= *term_at_) {
      kill_all(SIGTERM);
      kill_all(SIGCONT);  // a stopped process cannot handle the other signal
      term_at_.reset();
    }
    if (kill_at_ && steady_now() >= *kill_at_) {
      kill_all(SIGKILL);
      kill_at_ = after(1);
    }
  }

  /// Ends a failed run. Ranks have been told over the control channel and exit within end_grace. SIGTERM is
  /// for programs that never joined, SIGKILL for the rest.
  void begin_end() {
    ending_ = true;
    term_at_ = after(coordinator_ ? bounds_.end_grace + 0.5 : 0.5);
    kill_at_ = after(bounds_.end_grace + 0.5 + o_.grace_seconds);
    for (size_t i = 0; i < children_.size(); ++i) {  // no wait for ranks that cannot be told
      const int n = static_cast<int>(i);
      const bool deaf = stopped_.contains(n) || (coordinator_ && !coordinator_->joined(rank_of(n)));
      if (children_[i].alive && deaf) ::kill(-children_[i].process.pid, SIGKILL);
    }
  }

  void kill_all(int signal) {
    for (Child& c : children_)
      if (c.alive && c.process.pid > 0) ::kill(-c.process.pid, signal);
  }

  void relay(int i, int which) {
    Child& c = children_[static_cast<size_t>(i)];
    Fd& fd = which == 1 ? c.process.output : c.process.error;
    char buffer[65536];
    while (fd.valid()) {
      const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      PlainText& plain = c.plain[which - 1];
      if (n <= 0) {
        fd.reset();
        return log(i, plain.finish());
      }
      const size_t size = static_cast<size_t>(n);
      log(i, plain.add({buffer, size}));
      if (rank_of(i) == 0) (which == 1 ? output_ : error_).write({buffer, size});
      if (which == 2) {
        c.tail.append(buffer, size);
        if (c.tail.size() > 2 * kTailBytes) c.tail.erase(0, c.tail.size() - kTailBytes);
      }
      if (children_[static_cast<size_t>(i)].alive) return;  // let others run; poll() returns to this one
    }
  }

  void log(int i, std::string text) {
    Child& c = children_[static_cast<size_t>(i)];
    if (logs_json()) text = json_lines(text, rank_of(i));
    if (c.log.is_open())
      c.log.write(text);
    else if (!o_.run_dir.empty() && c.waiting.size() + text.size() <= kWaitingBytes)
      c.waiting += text;
  }

  void drain(int i) {
    relay(i, 1);
    relay(i, 2);
  }

  void read_signals() {
    for (const int s : signals_->take()) {
      if (s == SIGUSR2) {
        kill_all(SIGUSR2);
        if (!o_.flight_dir.empty())
          print_line("ltrain: SIGUSR2: each rank writes its last calls to " + o_.flight_dir);
        continue;
      }
      if (s == SIGCHLD) continue;  // reap() checks all children in every iteration
      if (!o_.saves) {
        ended_by_ = s;
        kill_all(SIGKILL);
        continue;
      }
      // One Ctrl-C may arrive twice, from the terminal and from a wrapper. Only a later one counts as a
      // second.
      const bool twice = interrupted_at_ && seconds_between(*interrupted_at_, steady_now()) > 0.3;
      if (s == SIGINT && !twice) interrupted_at_ = steady_now();
      if (s == SIGINT && twice) {
        killed_by_user_ = true;
        print_line("ltrain: SIGINT again: ending all ranks now, without a save");
        kill_all(SIGKILL);
        continue;
      }
      const char* name = ::sigabbrev_np(s);
      const std::string reason = std::string("SIG") + (name ? name : "?");
      ask_to_stop(reason, reason, s == SIGINT ? "; once more to end at once without a save" : "");
    }
  }

  /// Asks all ranks to save and stop, once. `reason`: word for their report.
  void ask_to_stop(const std::string& what, const std::string& reason, const char* more = "") {
    if (std::exchange(stop_asked_, true)) return;
    print_line(fmt::format("ltrain: {}: all ranks save and stop{}", what, more));
    // With several nodes, only node 0 has the coordinator. A rank that gets the signal itself reports it.
    if (coordinator_)
      coordinator_->request_stop(reason);
    else
      kill_all(SIGTERM);
  }

  void look_at_work() {
    if (!o_.work_error || stop_asked_ || ending_) return;
    if (const auto error = o_.work_error()) ask_to_stop(error->what(), "an error of the launcher");
  }

  void reap() {
    for (size_t i = 0; i < children_.size(); ++i) {
      Child& c = children_[i];
      if (!c.alive) continue;
      int status = 0;
      const pid_t got = ::waitpid(c.process.pid, &status, WNOHANG | WUNTRACED | WCONTINUED);
      if (got != c.process.pid) continue;
      if (WIFSTOPPED(status)) {
        stopped_.insert(static_cast<int>(i));
        if (coordinator_) coordinator_->child_stopped(rank_of(static_cast<int>(i)), WSTOPSIG(status));
        continue;
      }
      if (WIFCONTINUED(status)) {
        stopped_.erase(static_cast<int>(i));
        if (coordinator_) coordinator_->child_stopped(rank_of(static_cast<int>(i)), 0);
        continue;
      }
      c.alive = false;
      --alive_;
      ::kill(-c.process.pid, SIGKILL);  // processes that it may have started
      drain(static_cast<int>(i));
      ended(static_cast<int>(i), status);
    }
  }

  void ended(int i, int status) {
    const bool by_signal = WIFSIGNALED(status);
    const int code = by_signal ? WTERMSIG(status) : WEXITSTATUS(status);
    if (by_signal || code != 0) {
      child_failed_ = true;
      worst_code_ = std::max(worst_code_, by_signal ? static_cast<int>(ExitCode::rank_lost) : code);
    }
    if (!coordinator_) return;
    coordinator_->child_ended(rank_of(i), by_signal, code, end_text(i, by_signal, code));
  }

  std::string end_text(int i, bool by_signal, int code) {
    if (by_signal) {
      std::string text = "was killed by " + signal_text(code);
      if (code == SIGKILL) {
        const auto now = out_of_memory_kills();
        if (oom_before_ && now && *now > *oom_before_) {
          text += ": the host or its cgroup ran out of memory";
          if (const auto limit = cgroup_limits().memory_bytes)
            text += fmt::format(" (limit {:.1f} GiB)", static_cast<double>(*limit) / 1073741824.0);
        }
      }
      return text;
    }
    std::string text = fmt::format("ended with {}", exit_code_text(code));
    const std::string& tail = children_[static_cast<size_t>(i)].tail;
    size_t end = tail.find_last_not_of("\n\r ");
    if (end != std::string::npos && rank_of(i) != 0) {  // rank 0's stderr is on the terminal already
      const size_t begin = tail.find_last_of("\n\r", end);
      text += "; its last line: " + tail.substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
    }
    return text;
  }

  // ---- the end ----

  /// Number that rank 0 has told (Job::tell).
  int64_t fact(const char* name, int64_t otherwise) const {
    const std::string text = coordinator_->value(name).value_or("");
    int64_t value = otherwise;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }

  int conclude() {
    if (!keeps_signals_) signals_.reset();  // from here on a signal ends the launcher: no rank is left
    if (ended_by_ != 0) return 128 + ended_by_;
    if (killed_by_user_) {
      print_line("ltrain: ended by the user without a save; " +
                 exit_code_text(static_cast<int>(ExitCode::rank_lost)));
      return static_cast<int>(ExitCode::rank_lost);
    }
    if (!coordinator_) {
      if (!logs_open_ && worst_code_ != 0)  // node 0's launcher has not heard of it
        for (int i = 0; i < o_.ranks; ++i)
          if (const std::string& tail = children_[static_cast<size_t>(i)].tail; !tail.empty()) {
            print_line(
                fmt::format("ltrain: rank {} of this node said before it ended:\n{}", rank_of(i), tail));
            break;
          }
      return worst_code_;
    }
    // A child may have died so late that the settle time is still running.
    const SteadyTime limit = after(bounds_.settle + 1);
    while (!coordinator_->verdict().failed && !coordinator_->finished() && steady_now() < limit)
      ::usleep(2000);
    if (child_failed_)
      while (!coordinator_->verdict().failed && !all_said_goodbye() && steady_now() < limit) ::usleep(2000);
    const Verdict v = coordinator_->verdict();
    if (!v.failed) {
      const ExitCode code = coordinator_->goodbye_code();
      const bool other =
          o_.work_error && o_.work_error();  // the run ends with that error, not with this code
      if (code != ExitCode::done && !other) print_line("ltrain: " + exit_code_text(static_cast<int>(code)));
      return static_cast<int>(code);
    }
    const std::vector<std::string> lines = v.lines_after(shown_by_rank_0(v.text));
    for (size_t i = 0; i < lines.size(); ++i)
      print_line((i == 0 ? "ltrain: run failed: " : "  ") + lines[i], LogLevel::error);
    if (!o_.flight_dir.empty())
      for (const std::string& line : merge_flights(o_.flight_dir, began_))
        print_line("  last calls: " + line, LogLevel::error);
    std::string last = "ltrain: " + exit_code_text(static_cast<int>(v.code));
    const int local = v.rank - o_.node * o_.ranks;
    if (local >= 0 && local < o_.ranks && !children_[static_cast<size_t>(local)].log_path.empty())
      last += "; log of the rank: " + children_[static_cast<size_t>(local)].log_path;
    print_line(last, LogLevel::error);
    return static_cast<int>(v.code);
  }

  /// Rank 0's stderr is the terminal: what it ended with was read there.
  bool shown_by_rank_0(const std::string& text) const {
    for (int i = 0; i < o_.ranks; ++i)
      if (rank_of(i) == 0)
        return !text.empty() &&
               children_[static_cast<size_t>(i)].tail.find(as_logged(text)) != std::string::npos;
    return false;
  }

  bool all_said_goodbye() const {
    for (int i = 0; i < o_.ranks; ++i)
      if (!coordinator_->said_goodbye(rank_of(i))) return false;
    return true;
  }

  SuperviseOptions o_;
  const LivenessBounds bounds_;
  OutputRelay output_, error_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<Child> children_;
  std::set<int> stopped_;
  std::optional<CaughtSignals>& signals_;
  const bool keeps_signals_;
  const double began_ = unix_seconds();
  Fd joined_;  // readable when a rank of this node has joined; not used on node 0
  int alive_ = 0, worst_code_ = 0;
  int ended_by_ = 0;  // signal that ended a job without anything to save
  bool logs_open_ = false, ending_ = false, child_failed_ = false, stop_asked_ = false,
       killed_by_user_ = false;
  std::optional<SteadyTime> term_at_, kill_at_, interrupted_at_;
  std::optional<int64_t> oom_before_;
};

}  // namespace

int supervise(const SuperviseOptions& options) {
  std::optional<CaughtSignals> signals;
  signals.emplace(std::vector<int>{SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGCHLD});
  ::signal(SIGPIPE, SIG_IGN);
  const SteadyTime began = steady_now();
  JobEnd job;
  job.code = run_attempts(options, *signals, job, [&](const SuperviseOptions& o, bool keeps_signals) {
    return Supervisor(o, signals, keeps_signals).run();
  });
  signals.reset();
  if (const auto error = options.work_error && job.code != 0 ? options.work_error() : std::nullopt)
    job.code = static_cast<int>(error->code()), job.reason = error->what();
  job.seconds = seconds_between(began, steady_now());
  if (options.on_end) options.on_end(job);
  return job.code;
}

}  // namespace ltrain
