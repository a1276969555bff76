#include "runtime/launch/liveness.h"

#include <algorithm>
#include <set>

#include "base/time_scale.h"
#include "runtime/launch/environment/hostlist.h"

namespace ltrain {

LivenessBounds liveness_bounds() {
  LivenessBounds b;
  const double scale = time_scale();
  b.silence *= scale, b.settle *= scale, b.verdict *= scale, b.end_grace *= scale;
  return b;
}

Liveness::Liveness(int ranks, double join_seconds, std::string own_host, int least)
    : join_seconds_(join_seconds),
      own_host_(std::move(own_host)),
      least_(least),
      ranks_(static_cast<size_t>(ranks)) {}

std::string Liveness::host(int r) const { return rank(r).host.empty() ? own_host_ : rank(r).host; }

bool Liveness::all_joined() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const KnownRank& r) { return r.joined || r.absent; });
}

void Liveness::forgive(SteadyTime now) {
  for (KnownRank& r : ranks_) r.last_heard = r.status_at = now;
}

void Liveness::add_failure(Failure::Kind kind, int rank, ExitCode code, const std::string& text) {
  for (Failure& known : failures_)
    if (known.rank == rank) {
      if (known.kind == Failure::Kind::dead && kind == Failure::Kind::dead)
        known.text = text, known.code = code;
      return;
    }
  this->rank(rank).failed = true;
  if (!first_failure_) first_failure_ = steady_now();
  failures_.push_back({kind, rank, code, text, elapsed()});
}

void Liveness::watch(SteadyTime now, const std::string& listens_at) {
  if (any_failure()) return;
  watch_joining(now, listens_at);
  watch_joined(now);
}

void Liveness::watch_joining(SteadyTime now, const std::string& listens_at) {
  if (all_joined() || now < join_deadline_) return;
  std::vector<int> missing;
  std::string joined;
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    const KnownRank& k = rank(r);
    if (!k.joined && !k.process_gone) missing.push_back(r);
    if (k.joined) joined += fmt::format("{}rank {} ({})", joined.empty() ? "" : ", ", r, k.host);
  }
  if (missing.empty() || begin_without(missing)) return;
  add_failure(Failure::Kind::missing, missing[0], ExitCode::rank_lost,
              fmt::format("rank{} {} of {} did not join within {:g} s at {}; joined: {}",
                          missing.size() > 1 ? "s" : "", format_ranges(missing), ranks_.size(), join_seconds_,
                          listens_at, joined.empty() ? "none" : joined));
}

/// Marks the missing ranks as absent if enough others are there.
bool Liveness::begin_without(const std::vector<int>& missing) {
  const auto there = static_cast<int>(ranks_.size() - missing.size());
  if (least_ == 0 || there < least_ || missing.front() == 0) return false;
  for (const int r : missing) rank(r).absent = rank(r).goodbye = true;
  return true;
}

/// Adds the silent ranks. Once one of them has passed the bound, each that has been silent for half of it
/// counts too: all ranks of a frozen host lose their heartbeats up to an interval apart.
void Liveness::watch_silence(SteadyTime now) {
  std::vector<std::pair<double, int>> late;  // seconds, rank
  for (int i = 0; i < static_cast<int>(ranks_.size()); ++i) {
    const KnownRank& r = rank(i);
    const double seconds = seconds_between(r.last_heard, now);
    if (r.connection >= 0 && !r.goodbye && seconds > bounds_.silence / 2) late.emplace_back(-seconds, i);
  }
  std::sort(late.begin(), late.end());
  if (late.empty() || -late.front().first <= bounds_.silence) return;
  for (const auto& [seconds, i] : late) {
    const int stopped_by = rank(i).stopped_by;
    add_failure(Failure::Kind::silent, i, ExitCode::rank_lost,
                fmt::format("sent no heartbeat for {:g} s: {}", bounds_.silence,
                            stopped_by ? fmt::format("its process was stopped by {}", signal_text(stopped_by))
                                       : "its process is stopped, or its host is frozen or unreachable"));
  }
}

void Liveness::watch_joined(SteadyTime now) {
  watch_silence(now);
  if (any_failure() || !all_joined()) return;
  std::vector<std::optional<RankStatus>> all;
  for (const KnownRank& r : ranks_) {
    if (!r.goodbye && !r.status) return;  // it has just joined
    all.push_back(r.goodbye ? std::nullopt : r.status);
  }
  if (const int hung = hung_rank(all); hung >= 0) report_hang(hung, all);
}

/// Reports a hang. The rank at fault may differ from the one where it shows.
void Liveness::report_hang(int hung, const std::vector<std::optional<RankStatus>>& all) {
  const StallReport report = explain_stall(all);
  const RankStatus& s = *all[static_cast<size_t>(hung)];
  const int culprit = report.culprits.empty() || !s.waits() ? hung : report.culprits[0];
  std::set<std::string> hosts;
  for (const int r : report.without_data) hosts.insert(host(r));
  const bool path = hosts.size() > 1;
  std::string text = fmt::format(
      "{}, {}: it got nothing done for {:.1f} s (launch.distributed_timeout_minutes allows {:g} s)",
      path ? "gets no data" : "hangs", where(*all[static_cast<size_t>(culprit)]), s.idle_seconds,
      s.idle_limit);
  if (path)
    text += fmt::format(
        "\n  each rank of the group is in a call of it, and control messages arrive: data do not pass "
        "between the hosts {}; see their network (interface, firewall, MTU)",
        fmt::join(hosts, ", "));
  for (const std::string& line : report.lines) text += "\n  " + line;
  add_failure(Failure::Kind::overrun, culprit, ExitCode::rank_lost, text);
}

Verdict Liveness::verdict() const {
  return make_verdict(
      failures_, [this](int r) { return host(r); },
      [this](int r) {
        const KnownRank& k = rank(r);
        if (!k.status) return std::string(k.joined ? "after joining" : "before joining");
        bool peers_know = false;
        const Failure* own = nullptr;
        for (const Failure& f : failures_) {
          if (f.rank == r && !own) own = &f;
          peers_know |= f.rank != r && f.kind == Failure::Kind::error && f.code == ExitCode::rank_lost;
        }
        // A rank that failed by itself has reported its location. For a lost one, use its last heartbeat.
        if (!own || own->kind == Failure::Kind::error) return where(*k.status);
        return last_heard(*k.status, own->seconds - seconds_between(started_, k.status_at), peers_know);
      });
}

}  // namespace ltrain
