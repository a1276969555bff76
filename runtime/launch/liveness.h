// State of the ranks of a job as a coordinator sees it: joined, silent, hanging, failed. It has no socket and
// no thread. The coordinator feeds it events and queries the result.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "runtime/launch/rank_status.h"
#include "runtime/launch/verdict.h"

namespace ltrain {

/// Time limits of the liveness watch, in seconds. All but the heartbeat are multiplied by time_scale().
struct LivenessBounds {
  double heartbeat = 0.5;  ///< interval of a rank's status messages
  double silence = 8;      ///< without a heartbeat for this long, a rank is frozen or unreachable
  double settle = 0.4;     ///< wait for reports of other ranks after the first failure
  double verdict = 1.9;    ///< time that a failed rank waits for the verdict: settle plus transfer
  double end_grace = 3;    ///< time that a rank has to exit after it is told of the end
};
LivenessBounds liveness_bounds();

struct KnownRank {
  int connection = -1;  ///< descriptor
  bool joined = false, goodbye = false, process_gone = false, failed = false;
  bool absent = false;  ///< the job has begun without it
  ExitCode goodbye_code = ExitCode::done;
  std::string host, address, own_address, identity;
  std::string switches;  ///< RankLocation::switches
  int64_t pid = 0;
  int stopped_by = 0;  ///< signal number
  SteadyTime last_heard{};
  std::optional<RankStatus> status;
  SteadyTime status_at{};
};

class Liveness {
 public:
  /// `own_host`: host of ranks that have not reported theirs. `least`: after `join_seconds` the job begins
  /// with the ranks that have joined, if they are at least so many and rank 0 is one of them; 0: all must
  /// join.
  Liveness(int ranks, double join_seconds, std::string own_host, int least = 0);

  std::vector<KnownRank>& ranks() { return ranks_; }
  const std::vector<KnownRank>& ranks() const { return ranks_; }
  KnownRank& rank(int r) { return ranks_[static_cast<size_t>(r)]; }
  const KnownRank& rank(int r) const { return ranks_[static_cast<size_t>(r)]; }
  std::string host(int rank) const;
  /// Returns whether no rank is waited for: each has joined, or is absent.
  bool all_joined() const;

  /// Adds a failure. The first one of a rank counts, but the launcher's report on how a process ended
  /// replaces "closed its connection".
  void add_failure(Failure::Kind kind, int rank, ExitCode code, const std::string& text);
  bool any_failure() const { return first_failure_.has_value(); }
  /// Time at which the wait for other reports ends. Requires a failure.
  SteadyTime settled() const { return after(bounds_.settle, *first_failure_); }
  /// Adds missing, silent and hanging ranks as failures. `listens_at`: address that ranks must join, "port
  /// 29500 of host a".
  void watch(SteadyTime now, const std::string& listens_at);
  /// Verdict on the failures so far.
  Verdict verdict() const;
  /// Ignores a period in which the coordinator itself was stopped (Ctrl-Z, a frozen host).
  void forgive(SteadyTime now);

  const LivenessBounds& bounds() const { return bounds_; }

 private:
  double elapsed() const { return seconds_between(started_, steady_now()); }
  void watch_joining(SteadyTime now, const std::string& listens_at);
  bool begin_without(const std::vector<int>& missing);
  void watch_silence(SteadyTime now);
  void watch_joined(SteadyTime now);
  void report_hang(int hung, const std::vector<std::optional<RankStatus>>& all);

  const LivenessBounds bounds_ = liveness_bounds();
  const double join_seconds_;
  const std::string own_host_;
  const int least_;
  const SteadyTime started_ = steady_now(), join_deadline_ = after(join_seconds_, started_);
  std::vector<KnownRank> ranks_;
  std::vector<Failure> failures_;
  std::optional<SteadyTime> first_failure_;
};

}  // namespace ltrain
