// `ltrain run` on one node: starts one process per rank, watches them, ends all of them if one fails, and
// reports the reason.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/launch/restarts.h"
#include "runtime/launch/supervisor/child_process.h"

namespace ltrain {

struct NextAttempt {
  bool from_newest = false;  ///< an attempt has committed a checkpoint: go on from the newest
  int nodes = 1;
  std::vector<int> stay = {};  ///< their numbers in the first attempt, ascending; empty: the first ones
};

struct SuperviseOptions {
  int ranks = 1;  ///< ranks to start on this node
  /// Arguments of each rank, without the program's name: {"run", "recipe.yaml"}.
  std::vector<std::string> arguments;
  std::string run_dir;    ///< logs go to run_dir/logs/rank-00000.log; empty: no logs
  int64_t log_bytes = 0;  ///< largest size of a log before it is rotated; 0: unbounded
  /// Folder of the ranks' flight records (Job::keep_flight_in), for the report of a failure; empty: none.
  std::string flight_dir;
  /// Rank 0 writes to this process's stdout itself: completely, in order, and before its later output on
  /// stderr. Otherwise its output is passed on, logged, and dropped if nobody reads it.
  bool shares_stdout = false;
  int threads_per_rank = 0;  ///< OMP_NUM_THREADS; 0: cores / ranks
  int attempt = 0;
  std::vector<std::pair<std::string, std::string>> variables;  ///< additional environment of the ranks

  // Several nodes: every node runs a launcher, and node 0's has the coordinator.
  int node = 0, nodes = 1;
  std::string coordinator_host;
  int coordinator_port = 0;
  std::string token;     ///< several nodes: known to all; one node: generated
  std::string settings;  ///< job_settings() of the recipe that the ranks must have

  /// Descriptors that every rank inherits: the lock of run_dir, the text of the recipe.
  HandedDescriptors handed;

  /// True: the first signal asks the ranks to save and stop. False, for a job without anything to save: the
  /// first signal ends the job at once, with 128 + the signal's number like a shell.
  bool saves = true;

  /// Restarts of all ranks after one is lost. With several nodes, equal on all of them.
  RestartLimits restarts;
  /// Several nodes: a restart may go on with so many of them, if the others are gone; 0: with all only.
  int least_nodes = 0;
  /// Sets ranks, arguments and settings of a later attempt. Throws Error with the reason why the job cannot
  /// go on with so many nodes. Null: they stay.
  std::function<void(SuperviseOptions&, const NextAttempt&)> prepare;

  /// Error of work of this launcher without which the ranks cannot go on; asked for twice a second. The ranks
  /// then save and stop, and the run has its exit code. Null: none.
  std::function<std::optional<Error>()> work_error;

  /// Called once when the job has ended and no rank is left. Null: nothing.
  std::function<void(const JobEnd&)> on_end;

  double join_seconds = 120;  ///< LTRAIN_JOIN_TIMEOUT overrides it
  double grace_seconds = 5;   ///< time from SIGTERM to SIGKILL for ranks of a failed run
};

/// Runs the ranks, again after a failure as far as `restarts` allows. Returns the exit code of the whole run.
/// If it is not 0, the last lines on stderr give the reason. Handles the stop signals of the process while it
/// runs: SIGINT, SIGTERM, SIGUSR1 and SIGHUP ask all ranks to save and stop (exit 75), and a second SIGINT
/// kills them at once (exit 71). During the wait before a restart each of them ends the run at once (exit
/// 75). An ignored signal (nohup) stays ignored. Threads started by libraries may receive the signals. Call
/// it from the main thread, on node 0 with the lock of run_dir held.
int supervise(const SuperviseOptions& options);

}  // namespace ltrain
