// Rank of this process, from the environment variables of its launcher.
//
// The first complete set wins, in this order: LTRAIN_* (our own launcher), torchrun, RANK/WORLD_SIZE of nodes
// (Kubeflow v1), PET_* of nodes, Slurm, Open MPI, MPICH and Intel MPI, none. A step of mpirun inside a Slurm
// allocation has both sets. If they disagree, the MPI launcher is the inner one and wins.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace ltrain {

using Variables = std::map<std::string, std::string>;

/// Upper bound on the number of ranks. A larger number is a mistake and refused before anything is allocated
/// for it.
inline constexpr int kMaxRanks = 1 << 20;

struct LaunchEnvironment {
  enum class Kind {
    single,  ///< no group: one rank, or this process becomes the launcher
    rank,    ///< this process is one rank of several
    node,    ///< this process launches the ranks of one of several nodes
  };
  Kind kind = Kind::single;
  std::string source = "none";  ///< "torchrun", "Slurm", ... for the log
  std::string note;             ///< sentence to print, e.g. inside an allocation but outside a step

  int rank = 0, world_size = 1, local_rank = 0, local_size = 1;
  int node = 0, nodes = 1;
  int ranks_per_node = 0;  ///< kind node; 0: unknown

  /// Address of the coordinator. Ranks try all ports. The process that hosts it uses the first free one.
  std::string coordinator_host;
  std::vector<int> coordinator_ports;
  bool coordinator_is_launcher = false;  ///< the coordinator already runs; otherwise rank 0 hosts it
  /// Distinguishes ranks of this job from other processes on the port.
  std::string token;
  int attempt = 0;  ///< number of restarts of the job
};

LaunchEnvironment detect_environment(const Variables& variables);

/// LTRAIN_JOIN_TIMEOUT: time that ranks wait for each other, in seconds. Throws Error (usage).
double join_seconds(const Variables& variables, double otherwise);

/// Environment of this process, plus "_PARENT" (the parent's process id) and "_USER" (the user's id).
Variables process_variables();

/// Splits "node007:29500" or "[::1]:29500" into host and port. Port 0: not given.
std::pair<std::string, int> split_host_port(const std::string& text, const std::string& what);

}  // namespace ltrain
