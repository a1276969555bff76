// One joined rank of a training job: who it is, its groups, its deadlines, its end. What the trainer uses.
#pragma once
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "parallel/comm/communicator.h"
#include "runtime/launch/environment.h"
#include "runtime/launch/signals.h"
#include "runtime/launch/transport.h"

namespace ltrain {

struct RankInfo {
  int rank = 0, world_size = 1, local_rank = 0, local_size = 1, node = 0;
  std::string host, source;
  int attempt = 0;
  bool launched = false;  ///< by `ltrain run`, which holds the lock of output_dir
};

struct JobOptions {
  std::optional<LaunchEnvironment> environment;  ///< default: detected from this process's variables
  std::string settings;                          ///< job_settings(): a rank with others is refused
  std::string interface;      ///< launch.interface: network interface of the data connections
  double join_seconds = 120;  ///< LTRAIN_JOIN_TIMEOUT overrides it
  double hang_seconds = 600;  ///< launch.distributed_timeout_minutes
  bool shared_gpu = false;    ///< debug.shared_gpu
  bool deterministic = true;  ///< of groups of GPUs: the same sums in each run
};

class Job {
 public:
  /// From the environment; world_size 1 when there is none. Installs the signal handlers. Throws when the
  /// ranks do not find each other.
  static std::unique_ptr<Job> join(const JobOptions& options = {});
  ~Job();
  Job(const Job&) = delete;

  const RankInfo& info() const;

  /// Collective over `ranks` (world ranks, in the order that becomes the group's; must contain this one):
  /// through shared memory when all are on one host, else over Gloo (runtime/launch/transport.h); the single
  /// group if there is one. Every member calls it for the same groups in the same order.
  std::unique_ptr<Communicator> new_group(const std::string& name, AxisSet axes,
                                          const std::vector<int>& ranks);
  /// The same for agreements and checkpoints: a few bytes at a time between all ranks, with few connections
  /// between hosts (parallel/comm/communicator_tree.h).
  std::unique_ptr<Communicator> new_control_group(const std::string& name, AxisSet axes,
                                                  const std::vector<int>& ranks);
  /// Between GPUs, on NCCL: every rank of the job calls it for the same groups in the same order, whichever
  /// it is in (parallel/nccl/communicator_nccl.h).
  std::unique_ptr<Communicator> new_gpu_group(const std::string& name, AxisSet axes,
                                              const std::vector<int>& ranks, GroupMessages messages);
  /// All ranks.
  std::unique_ptr<Communicator> new_world_group();
  /// What this rank's groups use so far: "shared memory", "Gloo (TCP)", both; empty when it has none of
  /// several.
  std::string transports() const;
  /// What a group of these ranks uses.
  Transport transport_of(const std::string& name, const std::vector<int>& ranks) const;

  /// Entering set-up, a step, a save, an evaluation: what reports say where this rank was. Cheap; call it
  /// every step. A rank hangs when for JobOptions::hang_seconds it gets nothing done
  /// (kernels/base/progress.h) and waits for no other; the job hangs when that is so of all ranks, waiting or
  /// not.
  void section(const std::string& name, int64_t step = -1);

  /// Asked for at every step, and within long loops. Ranks see a request at different moments: agree on it
  /// with a max all-reduce before acting.
  StopRequest stop_requested() const;

  /// This rank fails while work of its GPU waits for others, which destructors would wait for: tells the
  /// coordinator, and ends that work. fail() is to follow. Nothing without groups of GPUs.
  void abandon(const std::exception& e);
  /// This rank failed: tells the coordinator, which ends the others. Throws after that (2 s at most) what was
  /// caught, with the exit code of the run's cause where that is another: a rank that lost its peers because
  /// one of them has no data must not say "start again". Call it where the exception was caught.
  /// The Error that it throws has no text where the run's verdict, which is printed, has it.
  [[noreturn]] void fail(const std::exception& e);
  /// This rank ends on purpose (done, or preempted after a save). On the rank that hosts the coordinator it
  /// waits for the others' goodbyes, and throws rank_lost when one of them fails instead.
  void finish(ExitCode code = ExitCode::done);

 private:
  class Impl;
  explicit Job(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// The exit code of an exception: its own for ltrain::Error, that of a limit (kernels/base/limits.h), or 70.
ExitCode exit_code_of(const std::exception& e);

}  // namespace ltrain
