// The quorum: it says which replicas take part in the next step, and whether the last one counts. Replicas
// are copies of the model with ranks of their own, which sum gradients in every step.
//
// Each replica votes once for each step, before it updates its weights: were its sums over all members
// complete? The step counts for all or for none. It counts if every member that is still there voted yes; a
// member that died after its vote has contributed everything. Replicas that wait to join become members with
// the next step, and copy the state of a member that has the newest.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace ltrain {

struct QuorumSettings {
  int replicas = 2;                             ///< replicas of the job; they have numbers from 0
  int least = 1;                                ///< replicas that suffice for a step
  double timeout_seconds = 60;                  ///< longest wait for a member that has not voted
  double join_seconds = 120;                    ///< longest wait for enough replicas
  std::function<void(const std::string&)> log;  ///< called from any thread
};

/// Intention of a replica after the step that it votes on.
enum class AfterStep : uint8_t {
  stays,
  leaves,  ///< it was asked to stop
  done,    ///< the job has made its last step
};

struct Vote {
  int replica = 0;
  int64_t epoch = 0;      ///< epoch of the membership that the replica knows; 0: it joins
  int64_t step = 0;       ///< steps in its state; -1: the state cannot be used
  bool complete = false;  ///< its sums of the next step are complete
  AfterStep after = AfterStep::stays;
};

struct Membership {
  int64_t epoch = 0;         ///< grows whenever groups between replicas must be made anew
  bool counts = false;       ///< members: the step that was voted on
  bool done = false;         ///< the job has made its last step
  int64_t step = 0;          ///< steps in the state of `source`
  int source = 0;            ///< member whose state the members of `behind` copy
  std::vector<int> members;  ///< replicas of the next step, ascending
  std::vector<int> behind;   ///< members with another state than the source

  bool has(int replica) const;
  bool is_behind(int replica) const;
};

/// The votes of one job. Thread-safe; a thread for each connection calls it.
class Quorum {
 public:
  explicit Quorum(QuorumSettings settings) : o_(std::move(settings)) {}

  /// A connection of a replica's first rank; it takes the place of an earlier one. Returns its number.
  int64_t arrive(int replica);
  /// The connection has ended.
  void depart(int replica, int64_t connection);

  /// Waits until all members have voted, and returns the membership of the next step. `alive`: asked while it
  /// waits; false ends the wait. Throws Error (rank_lost) if there are too few replicas for join_seconds, or
  /// none with a state.
  Membership vote(const Vote& vote, int64_t connection, const std::function<bool()>& alive);

  /// Store for the rendezvous of the groups of an epoch.
  void set(int64_t epoch, const std::string& key, const std::string& value);
  /// Waits for a value. Throws Error (rank_lost) after `seconds`, or once the epoch has lost a member.
  std::string get(int64_t epoch, const std::string& key, double seconds, const std::function<bool()>& alive);

 private:
  using Lock = std::unique_lock<std::mutex>;
  bool may_decide() const;
  void decide();
  void drop(int replica, const std::string& why);
  void drop_silent_members();
  void begin_epoch(Membership next);
  void say(const std::string& text) const;

  const QuorumSettings o_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, int64_t> connections_;  // indexed by replica
  int64_t arrivals_ = 0;
  Membership now_;
  bool done_ = false;
  std::vector<int> lost_;      // members of now_ that are gone
  std::map<int, Vote> votes_;  // for the next decision
  std::chrono::steady_clock::time_point first_vote_;
  int64_t decisions_ = 0;
  std::string failure_;  // why the last decision has no membership
  std::map<std::string, std::string> values_;
};

/// "replicas 0, 2 of 3 go on after step 7; replica 1 copies the state of replica 0".
std::string membership_text(const Membership& membership, int replicas);

}  // namespace ltrain
