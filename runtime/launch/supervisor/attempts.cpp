#include "runtime/launch/supervisor/attempts.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "base/deadline.h"
#include "base/exit_codes.h"
#include "base/printable.h"
#include "base/time_scale.h"
#include "runtime/launch/environment/environment.h"
#include "runtime/launch/environment/hostlist.h"
#include "runtime/launch/restart_meeting.h"
#include "runtime/launch/supervisor/output.h"
#include "runtime/launch/verdict.h"

namespace ltrain {
namespace {

constexpr double kStalledErrorSeconds = 1;  // limit if nobody reads
constexpr double kVerdictSeconds = 0.7;     // node 0 needs for the verdict of an attempt
constexpr double kMeetSeconds = 15;         // wait after an error that recurs

void say(const std::string& line) {
  if (line.empty()) return;
  OutputRelay error(2);
  error.write(printable_lines("ltrain: " + line));
  error.drain(kStalledErrorSeconds * time_scale());
}

/// Waits before a restart. Returns the signal that ends the wait, here or at another launcher of the meeting;
/// empty after `seconds`. Throws Error (rank_lost) if a launcher is gone.
std::string wait_or_signal(CaughtSignals& signals, double seconds, RestartMeeting* meeting) {
  constexpr int kLookMilliseconds = 100;
  const SteadyTime end = after(seconds);
  while (true) {
    for (const int s : signals.take()) {
      if (s == SIGCHLD || s == SIGUSR2) continue;
      if (meeting) meeting->report_signal(signal_text(s));
      return signal_text(s);
    }
    if (meeting) {
      if (const std::string s = meeting->signalled(); !s.empty()) return s + " to the launcher of a node";
      if (const std::string why = meeting->broken(); !why.empty()) fail(ExitCode::rank_lost, "{}", why);
    }
    if (steady_now() >= end) return "";
    pollfd polled{signals.fd(), POLLIN, 0};
    ::poll(&polled, 1, meeting ? std::min(kLookMilliseconds, poll_timeout(end)) : poll_timeout(end));
  }
}

class Attempts {
 public:
  Attempts(const SuperviseOptions& options, CaughtSignals& signals, JobEnd& job)
      : given_(options), o_(options), signals_(signals), job_(job), policy_(options.restarts) {}

  int run(const std::function<AttemptEnd(const SuperviseOptions&, bool another)>& attempt) {
    while (true) {
      const AttemptEnd end = attempt(o_, policy_.any_left());
      job_.reason = end.lines;
      job_.first_step = end.first_step, job_.saved_step = end.saved_step, job_.end_step = end.end_step;
      RestartOrder order;
      std::unique_ptr<RestartMeeting> meeting;
      try {
        order = next(end, meeting);
        say(order.text);
        if (!order.restart) {
          if (order.code != end.code) say(exit_code_text(static_cast<int>(order.code)));
          if (meeting) meeting->part();
          return static_cast<int>(order.code);
        }
        const std::string stopped_by = wait_or_signal(signals_, order.wait_seconds, meeting.get());
        if (meeting) meeting->part();
        if (!stopped_by.empty()) {
          say(fmt::format("{} before the restart: no rank runs, and the newest checkpoint is on the disk; {}",
                          stopped_by, exit_code_text(static_cast<int>(ExitCode::preempted))));
          return static_cast<int>(ExitCode::preempted);
        }
      } catch (const Error& e) {
        if (o_.nodes == 1) throw;
        say(fmt::format("no restart: {}; {}", e.what(), exit_code_text(static_cast<int>(end.code))));
        return static_cast<int>(end.code);
      }
      begin(order);
    }
  }

 private:
  /// Decision of this launcher, or of node 0's for all launchers.
  RestartOrder next(const AttemptEnd& end, std::unique_ptr<RestartMeeting>& meeting) {
    if (o_.nodes == 1 || o_.restarts.most == 0 || end.code == ExitCode::done) return decide(end, {});
    // After an error that every restart would repeat, nobody waits long for the others.
    const double seconds = launcher_restarts(static_cast<int>(end.code)) && !end.asked_to_stop
                               ? join_seconds(process_variables(), o_.join_seconds)
                               : kMeetSeconds * time_scale();
    // Until then the port still belongs to the coordinator of the attempt, which would report a stranger.
    if (o_.node > 0)
      std::this_thread::sleep_for(std::chrono::duration<double>(kVerdictSeconds * time_scale()));
    const std::string token = fmt::format("{}/meeting {}", given_.token, o_.attempt);
    meeting =
        std::make_unique<RestartMeeting>(MeetingOptions{.node = o_.node,
                                                        .nodes = o_.nodes,
                                                        .host = o_.coordinator_host,
                                                        .port = o_.coordinator_port,
                                                        .token = token,
                                                        .join_seconds = seconds,
                                                        .least_nodes = std::min(o_.least_nodes, o_.nodes)});
    return meeting->agree({o_.node, end.code, end.asked_to_stop},
                          [&](const std::vector<NodeEnd>& nodes) { return decide(end, nodes); });
  }

  /// On one node, and on node 0. `nodes`: ends of the nodes that are there; empty on one.
  RestartOrder decide(AttemptEnd end, const std::vector<NodeEnd>& nodes) {
    for (const NodeEnd& n : nodes) end.asked_to_stop = end.asked_to_stop || n.asked_to_stop;
    const RestartDecision d = policy_.next(end);
    RestartOrder order;
    order.restart = d.restart, order.code = d.code, order.number = d.number;
    order.wait_seconds = d.wait_seconds, order.text = d.why_not;
    if (!d.restart) return order;
    order.from_newest = saved_ = saved_ || end.saved;
    order.text = fmt::format("restart {} of {} in {:g} s", d.number, o_.restarts.most, d.wait_seconds);
    for (const NodeEnd& n : nodes) order.nodes.push_back(n.node);
    if (static_cast<int>(nodes.size()) < o_.nodes && o_.nodes > 1) go_on_without(order);
    if (!order.restart) return order;
    if (note_.end_step == 0) note_.end_step = end.end_step;
    note_.number = d.number, note_.most = o_.restarts.most, note_.reason = end.line;
    note_.earlier_seconds = seconds_between(began_, steady_now()) + d.wait_seconds;
    order.note = write_restart_note(note_);
    return order;
  }

  /// Completes the order for fewer nodes than before. The job ends if the recipe does not allow so many.
  void go_on_without(RestartOrder& order) const {
    const std::string who = fmt::format("node{} {} of {}", order.nodes.size() == 1 ? "" : "s",
                                        format_ranges(order.nodes), o_.nodes);
    try {
      SuperviseOptions fewer = o_;
      fewer.nodes = static_cast<int>(order.nodes.size());
      if (o_.prepare) o_.prepare(fewer, {order.from_newest, fewer.nodes, numbers(order.nodes)});
      const int ranks = fewer.ranks * fewer.nodes;
      order.text +=
          fmt::format(", with {} and {} rank{}: no other launcher came", who, ranks, ranks == 1 ? "" : "s");
    } catch (const Error& e) {
      order.restart = false;
      order.text = fmt::format("no restart with {}, which alone came: {}", who, e.what());
    }
  }

  /// Sets the options of the next attempt, which goes on where the last one ended.
  void begin(const RestartOrder& order) {
    if (o_.nodes > 1) {
      const auto own = std::find(order.nodes.begin(), order.nodes.end(), o_.node);
      LT_CHECK(own != order.nodes.end(), "expected node {} among those that go on", o_.node);
      o_.node = static_cast<int>(own - order.nodes.begin());
      stay_ = numbers(order.nodes);
      o_.nodes = static_cast<int>(order.nodes.size());
    }
    if (o_.prepare) o_.prepare(o_, {order.from_newest, o_.nodes, stay_});
    job_.restarts = order.number;
    o_.attempt = given_.attempt + order.number;
    if (given_.nodes > 1) o_.token = fmt::format("{}/attempt {}", given_.token, o_.attempt);
    o_.variables = given_.variables;
    o_.variables.emplace_back(kRestartVariable, order.note);
  }

  /// Numbers in the first attempt of nodes of this one.
  std::vector<int> numbers(std::vector<int> nodes) const {
    if (!stay_.empty())
      for (int& n : nodes) n = stay_.at(static_cast<size_t>(n));
    return nodes;
  }

  const SuperviseOptions& given_;
  SuperviseOptions o_;
  CaughtSignals& signals_;
  JobEnd& job_;
  RestartPolicy policy_;
  RestartNote note_;
  std::vector<int> stay_;  // NextAttempt::stay
  bool saved_ = false;     // some attempt has committed a checkpoint
  const SteadyTime began_ = steady_now();
};

}  // namespace

int run_attempts(const SuperviseOptions& options, CaughtSignals& signals, JobEnd& job,
                 const std::function<AttemptEnd(const SuperviseOptions&, bool another)>& attempt) {
  return Attempts(options, signals, job).run(attempt);
}

}  // namespace ltrain
