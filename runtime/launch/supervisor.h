// `ltrain run` on one node: starts one process per rank, watches them, ends them all when one fails, and says
// why.
#pragma once
#include <string>
#include <vector>

#include "runtime/launch/child_process.h"

namespace ltrain {

struct SuperviseOptions {
  int ranks = 1;                       ///< to start on this node
  std::vector<std::string> arguments;  ///< of each rank, without the program's name: {"run", "recipe.yaml"}
  std::string run_dir;                 ///< logs go to run_dir/logs/rank-00000.log; empty: no logs
  /// Rank 0 writes to this process's stdout itself: all of it, in order, and before what it then says on
  /// stderr. Else its bytes are passed on, and logged, and dropped where nobody reads them.
  bool shares_stdout = false;
  int threads_per_rank = 0;  ///< OMP_NUM_THREADS; 0: cores / ranks
  int attempt = 0;
  std::vector<std::pair<std::string, std::string>> variables;  ///< more environment for the ranks

  // Several nodes: every node runs a launcher, node 0's has the coordinator.
  int node = 0, nodes = 1;
  std::string coordinator_host;
  int coordinator_port = 0;
  std::string token;     ///< several nodes: known to all; one node: made up
  std::string settings;  ///< job_settings() of the recipe that the ranks are to have

  /// What every rank inherits: the lock of run_dir, the text of the recipe.
  HandedDescriptors handed;

  /// True: a first signal asks the ranks to save and stop. False, for a job that has nothing to save: it ends
  /// the job at once, with 128 + the signal's number, as shells report it.
  bool saves = true;

  double join_seconds = 120;  ///< LTRAIN_JOIN_TIMEOUT overrides it
  double grace_seconds = 5;   ///< from SIGTERM to SIGKILL for ranks of a failed run
};

/// Returns the exit code of the whole run; the last lines on stderr say why when it is not 0. Handles the
/// stop signals of the process while it runs: SIGINT, SIGTERM, SIGUSR1 or SIGHUP ask all ranks to save and
/// stop (exit 75); a second SIGINT kills them at once (exit 71). A signal that is ignored (nohup) stays
/// ignored. Threads that libraries have started may take the signals. Call from the main thread, and on node
/// 0 with the lock of run_dir held.
int supervise(const SuperviseOptions& options);

}  // namespace ltrain
