// The one place that all ranks of a job talk to: rendezvous, key-value store, liveness, the verdict on a
// failure. It is a thread in the launcher (one node) or in rank 0 (Slurm, torchrun, MPI, several nodes).
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/launch/liveness.h"
#include "runtime/launch/verdict.h"

namespace ltrain {

struct CoordinatorOptions {
  std::string address;        ///< to listen on; empty: all
  std::vector<int> ports{0};  ///< the first free one is taken
  std::string token;
  std::string settings;          ///< "key: value" lines of the job's recipe: those of every rank are equal
  std::string owner = "rank 0";  ///< whose settings they are
  int world_size = 1;
  double join_seconds = 60;                     ///< all ranks have joined by then
  std::function<void(const std::string&)> log;  ///< called from the coordinator's thread
};

class Coordinator {
 public:
  explicit Coordinator(CoordinatorOptions options);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;

  int port() const;
  /// Readable when something changed that verdict() or finished() tells. Do not read from it.
  int changed_fd() const;
  void clear_changed();

  /// Asks every rank to save and stop; ranks that join later are asked then. `reason` is the signal's name.
  void request_stop(const std::string& reason);
  /// What the launcher knows of its child: how it ended. `on_purpose`: exit code 0, or one announced by a
  /// goodbye.
  void child_ended(int rank, bool by_signal, int code, const std::string& text);
  void child_stopped(int rank, int signal);

  /// Set once, after the settle time; from then on all ranks have been told.
  Verdict verdict() const;
  /// All ranks have said goodbye, or are gone after the verdict.
  bool finished() const;
  /// The goodbye codes: done if all are done, otherwise the largest.
  ExitCode goodbye_code() const;
  bool joined(int rank) const;
  bool said_goodbye(int rank) const;
  std::string host_of(int rank) const;

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

}  // namespace ltrain
