// One joined rank of a training job: its identity, groups, deadlines and end. Used by the trainer.
#pragma once
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "parallel/comm/communicator.h"
#include "runtime/launch/environment/environment.h"
#include "runtime/launch/rank_order.h"
#include "runtime/launch/signals.h"
#include "runtime/launch/transport.h"

namespace ltrain {

struct RankInfo {
  int rank = 0, world_size = 1, local_rank = 0, local_size = 1, node = 0;
  std::string host, source;
  int attempt = 0;
  bool launched = false;  ///< started by `ltrain run`, which holds the lock of output_dir
};

struct JobOptions {
  std::optional<LaunchEnvironment> environment;  ///< default: detected from this process's variables
  std::string settings;                          ///< job_settings(); ranks with other settings are refused
  std::string interface;  ///< launch.interface: network interface of the data connections
  /// launch.rank_order: ranks that another launcher started get numbers by the distance of their hosts,
  /// within `parts` equal ranges.
  bool by_distance = false;
  int parts = 1;
  double join_seconds = 120;  ///< LTRAIN_JOIN_TIMEOUT overrides it
  double hang_seconds = 600;  ///< launch.distributed_timeout_minutes
  bool shared_gpu = false;    ///< debug.shared_gpu
  bool deterministic = true;  ///< GPU groups give the same sums in each run
};

class Job {
 public:
  /// Joins the job described by the environment; a world of one rank without one. Installs the signal
  /// handlers. Throws if the ranks do not find each other.
  static std::unique_ptr<Job> join(const JobOptions& options = {});
  ~Job();
  Job(const Job&) = delete;

  const RankInfo& info() const;
  /// Hosts of all ranks, and the switches above them.
  std::vector<RankLocation> locations() const;

  /// Collective over `ranks` (world ranks, in the order of the group; must contain this one). Uses shared
  /// memory if all are on one host, else Gloo (runtime/launch/transport.h). A single rank needs neither.
  /// Every member must create the same groups in the same order.
  std::unique_ptr<Communicator> new_group(const std::string& name, AxisSet axes,
                                          const std::vector<int>& ranks);
  /// Like new_group, for agreements and checkpoints: a few bytes at a time between all ranks, with few
  /// connections between hosts (parallel/comm/communicator_tree.h).
  std::unique_ptr<Communicator> new_control_group(const std::string& name, AxisSet axes,
                                                  const std::vector<int>& ranks);
  /// Like new_control_group, without buffers in shared memory: for messages that are rare.
  std::unique_ptr<Communicator> new_tree_group(const std::string& name, AxisSet axes,
                                               const std::vector<int>& ranks);
  /// Group of GPUs on NCCL. Every rank of the job must call it for the same groups in the same order,
  /// including groups that it does not belong to (parallel/nccl/communicator_nccl.h).
  std::unique_ptr<Communicator> new_gpu_group(const std::string& name, AxisSet axes,
                                              const std::vector<int>& ranks, GroupMessages messages);
  /// Group of all ranks.
  std::unique_ptr<Communicator> new_world_group();
  /// Transports that this rank's groups use so far: "shared memory", "Gloo (TCP)", or both; empty if it has
  /// no group of several ranks.
  std::string transports() const;
  /// Transport of a group of these ranks.
  Transport transport_of(const std::string& name, const std::vector<int>& ranks) const;

  /// Names the current section (setup, a step, a save, an evaluation) for reports. Cheap; call it every step.
  /// A rank hangs if it makes no progress for JobOptions::hang_seconds (base/progress.h) and does not
  /// wait for other ranks. The job hangs if all ranks make no progress for that time, waiting or not.
  void section(const std::string& name, int64_t step = -1);

  /// Sets the folder for the flight recorder's file of this rank, which is written when the job loses a rank,
  /// when this rank fails by a defect, and at SIGUSR2. The folder must belong to this job.
  void keep_flight_in(const std::string& folder);

  /// Tells the launcher a number: kFirstStep, kEndStep or kSavedStep (runtime/launch/restarts.h). Call it on
  /// one rank. Does nothing without a coordinator.
  void tell(const std::string& fact, int64_t value);

  /// Stop request from a signal or the launcher. Query it at every step and in long loops. Ranks see a
  /// request at different times, so agree on it with a max all-reduce before acting.
  StopRequest stop_requested() const;

  /// Called when this rank fails while its GPU work waits for other ranks, because destructors would wait for
  /// that work. Keeps the flight recorder's file while the groups are there. With groups of GPUs it tells the
  /// coordinator and aborts the work. fail() must follow.
  void abandon(const std::exception& e);
  /// Reports the failure of this rank to the coordinator, which ends the others. Then, after at most 2 s,
  /// rethrows the exception, with the exit code of the run's cause if that differs: a rank that lost its
  /// peers because one of them has no data must not say "start again". Call it inside the catch block.
  /// The rethrown Error has no text if the printed verdict of the run has it.
  [[noreturn]] void fail(const std::exception& e);
  /// Ends this rank on purpose (done, or preempted after a save). The rank that hosts the coordinator waits
  /// for the goodbyes of the others. Throws rank_lost if one of them fails instead.
  void finish(ExitCode code = ExitCode::done);

 private:
  class Impl;
  explicit Job(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Exit code of an exception: its own for ltrain::Error, the code of a limit (base/limits.h), or 70.
ExitCode exit_code_of(const std::exception& e);

}  // namespace ltrain
