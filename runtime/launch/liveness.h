// What a coordinator knows of the ranks of its job: who has joined, who is silent or hangs, and what has
// failed. It has no socket and no thread: the coordinator tells it what it hears, and asks what that means.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "runtime/launch/rank_status.h"
#include "runtime/launch/verdict.h"

namespace ltrain {

/// Bounds of the liveness watch, seconds. All but the heartbeat are multiplied by time_scale().
struct LivenessBounds {
  double heartbeat = 0.5;  ///< a rank sends its status this often
  double silence = 8;      ///< no heartbeat for so long: frozen or unreachable
  double settle = 0.4;     ///< after the first failure: wait for the others' reports before the verdict
  double verdict = 1.9;    ///< a rank that failed waits for the verdict so long: settle, and the way to it
  double end_grace = 3;    ///< a rank that is told of the end leaves within this
};
LivenessBounds liveness_bounds();

struct KnownRank {
  int connection = -1;  ///< descriptor
  bool joined = false, goodbye = false, process_gone = false, failed = false;
  ExitCode goodbye_code = ExitCode::done;
  std::string host, address, own_address, identity;
  int64_t pid = 0;
  int stopped_by = 0;  ///< signal
  SteadyTime last_heard{};
  std::optional<RankStatus> status;
  SteadyTime status_at{};
};

class Liveness {
 public:
  /// `own_host`: of a rank that has not said its own.
  Liveness(int ranks, double join_seconds, std::string own_host);

  std::vector<KnownRank>& ranks() { return ranks_; }
  const std::vector<KnownRank>& ranks() const { return ranks_; }
  KnownRank& rank(int r) { return ranks_[static_cast<size_t>(r)]; }
  const KnownRank& rank(int r) const { return ranks_[static_cast<size_t>(r)]; }
  std::string host(int rank) const;
  bool all_joined() const;

  /// The first failure of a rank counts; but the launcher's word on how a process ended beats "closed its
  /// connection".
  void add_failure(Failure::Kind kind, int rank, ExitCode code, const std::string& text);
  bool any_failure() const { return first_failure_.has_value(); }
  /// When the others' reports have been waited for; after a failure.
  SteadyTime settled() const { return after(bounds_.settle, *first_failure_); }
  /// Looks for ranks that are missing, silent or hang, and adds them as failures. `listens_at`: where they
  /// were to come, "port 29500 of host a".
  void watch(SteadyTime now, const std::string& listens_at);
  /// Of what has failed so far.
  Verdict verdict() const;
  /// The coordinator was itself stopped (Ctrl-Z, a frozen host), and must not judge the others by that time.
  void forgive(SteadyTime now);

  const LivenessBounds& bounds() const { return bounds_; }

 private:
  double elapsed() const { return seconds_between(started_, steady_now()); }
  void watch_joining(SteadyTime now, const std::string& listens_at);
  void watch_joined(SteadyTime now);
  void report_hang(int hung, const std::vector<std::optional<RankStatus>>& all);

  const LivenessBounds bounds_ = liveness_bounds();
  const double join_seconds_;
  const std::string own_host_;
  const SteadyTime started_ = steady_now(), join_deadline_ = after(join_seconds_, started_);
  std::vector<KnownRank> ranks_;
  std::vector<Failure> failures_;
  std::optional<SteadyTime> first_failure_;
};

}  // namespace ltrain
