// Meeting of the launchers of all nodes after an attempt that failed: node 0 decides on a restart, and all of
// them begin the next attempt together.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"

namespace ltrain {

struct MeetingOptions {
  int node = 0, nodes = 2;
  std::string host;   ///< host of node 0
  int port = 0;       ///< the coordinator's port, free between two attempts
  std::string token;  ///< known to all launchers, and of this meeting only
  double join_seconds = 120;
  int least_nodes = 0;  ///< nodes that suffice after `join_seconds`, node 0 among them; 0: all
};

/// End of an attempt on one node.
struct NodeEnd {
  int node = 0;
  ExitCode code = ExitCode::done;
  bool asked_to_stop = false;
};

/// Decision of node 0's launcher for all nodes.
struct RestartOrder {
  bool restart = false;
  ExitCode code = ExitCode::done;  ///< exit code of the job if it ends
  int number = 0;                  ///< number of the restart, from 1
  double wait_seconds = 0;
  bool from_newest = false;  ///< an attempt has saved: go on from the newest checkpoint
  std::string note;          ///< LTRAIN_RESTART of the next attempt
  std::string text;          ///< line for the log of each launcher
  std::vector<int> nodes;    ///< nodes that go on, ascending; node 0 is the first
};

class RestartMeeting {
 public:
  /// Waits until the launchers of all nodes are there, or at the end of the time `least_nodes` of them.
  /// Throws Error (rank_lost) with the nodes that are missing.
  explicit RestartMeeting(const MeetingOptions& options);
  ~RestartMeeting();
  RestartMeeting(const RestartMeeting&) = delete;

  /// Call once on each node. Returns the same order on all nodes: the result of `decide` on node 0, which
  /// sees the ends of the nodes that are there, ascending. Throws Error (rank_lost) if a launcher dies
  /// meanwhile.
  RestartOrder agree(const NodeEnd& own,
                     const std::function<RestartOrder(const std::vector<NodeEnd>&)>& decide);

  /// Tells all launchers of a signal to this one.
  void report_signal(const std::string& name);
  std::string signalled() const;  ///< signal that some launcher got; empty: none
  std::string broken() const;     ///< reason why the launchers are no longer together; empty: they are
  /// Leaves. Node 0 returns once all others have left, so that the port is free.
  void part();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ltrain
