// A rank's place in a job of several replicas: membership, sums, and the state that a replica copies when it
// joins. Each replica is a job of its own (runtime/launch/job.h); ranks at the same position of each replica
// form a group, which is made anew when a replica is lost or joins.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor/stream.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/communicator_gloo.h"
#include "runtime/program/replica_sums.h"
#include "runtime/recipe/recipe.h"
#include "runtime/replicas/quorum_channel.h"

namespace ltrain {

/// From LTRAIN_QUORUM (host:port), LTRAIN_REPLICA and LTRAIN_TOKEN; none of the first two: nullopt. Throws
/// Error (usage).
std::optional<QuorumAddress> quorum_address();

QuorumSettings quorum_settings(const Recipe& recipe);

/// Settings that the recipes of all replicas must share: job_settings() without the folder of the run.
std::string shared_settings(const Recipe& recipe);

class ReplicaGroup final : public ReplicaSums {
 public:
  /// Collective over the ranks of this replica, whose group for agreements is `control`. Connects to the
  /// quorum. `stop`: asked while it waits for a first step; true ends the wait with Error (preempted).
  ReplicaGroup(const Recipe& recipe, const QuorumAddress& address, int rank, Communicator& control,
               Stream& control_stream, std::function<bool()> stop);
  ~ReplicaGroup() override;

  /// Called before each step, with the number of steps in the state. Meets the other replicas if the
  /// membership has changed, and runs `copy_state` if a member has another state: every rank then calls
  /// copy() for the same tensors in the same order. Returns the number of steps in the state.
  int64_t begin_step(int64_t step, const std::function<void()>& copy_state);
  /// In `copy_state`: copies from the source to the members that are behind. `t` is in host memory.
  void copy(Tensor t);
  void copy(std::vector<int64_t>& numbers);
  /// In `copy_state`: this rank's state is replaced.
  bool receives() const { return made_.is_behind(replica_); }

  /// After begin_step: the other replicas have made the last step of the job.
  bool others_are_done() const { return next_ && next_->done; }
  int place() const;  ///< this replica's position among the members
  int count() const { return static_cast<int>(made_.members.size()); }
  /// This replica does what one does for all: it saves.
  bool first() const { return place() == 0; }
  /// The next step is the job's last.
  void end_after_step() { last_ = true; }

  void sum(Tensor t) override;
  bool commit(bool leaves) override;

 private:
  Membership vote(int64_t step, bool complete, AfterStep after);
  bool connect();
  bool all_ranks(bool mine);
  template <class Call>
  void attempt(const Call& call);
  void disconnect();

  const QuorumSettings settings_;
  const int replica_, rank_;
  Communicator& control_;
  Stream& control_stream_;
  const std::function<bool()> stop_;
  std::shared_ptr<QuorumClient> client_;
  std::shared_ptr<GlooTransport> transport_;
  std::unique_ptr<Communicator> group_;  // new in each epoch
  std::unique_ptr<Stream> stream_;       // destroyed before group_
  std::optional<Membership> next_;       // membership of the next step
  Membership made_;                      // membership of group_
  int64_t step_ = 0;
  bool failed_ = false;  // a call of this step
  bool last_ = false;
};

}  // namespace ltrain
