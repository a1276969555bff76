// Coordinator of a job: rendezvous, key-value store, liveness, and the verdict on a failure. It is a thread
// in the launcher (one node) or in rank 0 (Slurm, torchrun, MPI, several nodes).
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/launch/liveness.h"
#include "runtime/launch/verdict.h"

namespace ltrain {

struct CoordinatorOptions {
  std::string address;        ///< address to listen on; empty: all
  std::vector<int> ports{0};  ///< the first free port is used
  std::string token;
  std::string settings;          ///< "key: value" lines of the job's recipe; every rank must have the same
  std::string owner = "rank 0";  ///< owner of the settings, for messages
  int world_size = 1;
  double join_seconds = 60;  ///< limit for all ranks to join
  bool by_distance = false;  ///< ranks get numbers by the distance of their hosts (rank_order.h)
  int parts = 1;             ///< equal ranges of ranks; with by_distance a rank stays in its range
  int least_joined = 0;      ///< ranks that suffice after it, rank 0 among them; 0: all (Liveness)
  std::function<void(const std::string&)> log;  ///< called from the coordinator's thread
};

class Coordinator {
 public:
  explicit Coordinator(CoordinatorOptions options);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;

  int port() const;
  /// Readable when the result of verdict() or finished() may have changed. Do not read from it.
  int changed_fd() const;
  void clear_changed();

  /// Asks every rank to save and stop, including ranks that join later. `reason`: name of the signal.
  void request_stop(const std::string& reason);
  /// Reports the end of a child process. `code`: signal number if `by_signal`, else exit code. `text`: how it
  /// ended, for messages.
  void child_ended(int rank, bool by_signal, int code, const std::string& text);
  void child_stopped(int rank, int signal);

  /// Set once, after the settle time. All ranks have then been told.
  Verdict verdict() const;
  /// Returns whether all ranks have said goodbye, or are gone after the verdict.
  bool finished() const;
  /// Exit code from the goodbyes: done if all are done, otherwise the largest.
  ExitCode goodbye_code() const;
  bool joined(int rank) const;
  bool said_goodbye(int rank) const;
  std::string host_of(int rank) const;
  /// Value that a rank has set in the key-value store; none yet: nullopt.
  std::optional<std::string> value(const std::string& key) const;

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

}  // namespace ltrain
