// Which rank this process is, as told by the variables of whatever started it.
//
// Order, first complete set wins: LTRAIN_* (our own launcher), torchrun, RANK/WORLD_SIZE of nodes (Kubeflow
// v1), PET_* of nodes, Slurm, Open MPI, MPICH and Intel MPI, none. A step of mpirun inside a Slurm allocation
// carries both sets; where they disagree the MPI launcher is the inner one and wins.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace ltrain {

using Variables = std::map<std::string, std::string>;

/// More ranks than any job has: a number above it is a mistake, refused before anything is made for it.
inline constexpr int kMaxRanks = 1 << 20;

struct LaunchEnvironment {
  enum class Kind {
    single,  ///< nothing describes a group: one rank, or this process becomes the launcher
    rank,    ///< this process is one rank of several
    node,    ///< this process is to launch the ranks of one of several nodes
  };
  Kind kind = Kind::single;
  std::string source = "none";  ///< "torchrun", "Slurm", ... for the log
  std::string note;             ///< a sentence to print, e.g. inside an allocation but outside a step

  int rank = 0, world_size = 1, local_rank = 0, local_size = 1;
  int node = 0, nodes = 1;
  int ranks_per_node = 0;  ///< kind node; 0: not said

  /// Where the coordinator listens. Ranks try all ports; the one who hosts it takes the first that is free.
  std::string coordinator_host;
  std::vector<int> coordinator_ports;
  bool coordinator_is_launcher = false;  ///< it already runs; otherwise rank 0 hosts it
  std::string token;                     ///< tells this job's ranks from every other process on the port
  int attempt = 0;                       ///< how often the job was restarted
};

LaunchEnvironment detect_environment(const Variables& variables);

/// LTRAIN_JOIN_TIMEOUT: how long ranks wait for each other, in seconds. Throws Error (usage).
double join_seconds(const Variables& variables, double otherwise);

/// This process's environment, plus "_PARENT" (the parent's process id) and "_USER" (the user's).
Variables process_variables();

/// "node007:29500" or "[::1]:29500" -> host, port; port 0 when there is none.
std::pair<std::string, int> split_host_port(const std::string& text, const std::string& what);

}  // namespace ltrain
