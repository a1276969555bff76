// A rank's side of the control channel. It joins the job, sends heartbeats from a thread, looks up keys, and
// ends the process when the coordinator says so or is gone.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "parallel/comm/key_value_store.h"
#include "runtime/launch/environment/environment.h"
#include "runtime/launch/rank_status.h"

namespace ltrain {

struct RankAddress {
  std::string host, address;  ///< empty: the job has begun without the rank
  std::string identity;       ///< result of shared_memory_identity()
  std::string switches;       ///< RankLocation::switches
};

struct ControlOptions {
  LaunchEnvironment environment;
  std::string host;      ///< host of this rank
  std::string identity;  ///< shared_memory_identity() of this process
  std::string switches;  ///< switches above this host (rank_order.h)
  std::string settings;  ///< "key: value" lines of the recipe; equal on all ranks
  double join_seconds = 60;
  /// The coordinator is our launcher on this host, which Ctrl-Z may stop for a while.
  bool coordinator_can_sleep = false;
  std::function<RankStatus()> status;  ///< called by the heartbeat thread
  /// Called at most once, from the thread, before all ranks have joined: the job's number of this rank is
  /// another than the launcher's.
  std::function<void(int rank)> on_renumbered;
  std::function<void(const std::string& reason)> on_stop;
  /// Called once, from the thread, when the run has failed elsewhere or the coordinator is gone. The process
  /// has LivenessBounds::end_grace seconds to exit by itself.
  std::function<void(ExitCode code, int culprit, const std::string& reason)> on_end;
};

class ControlClient final : public KeyValueStore {
 public:
  /// Connects and waits until all ranks have joined. On failure it throws with the addresses tried, or Error
  /// (usage) if the job has another recipe than this rank.
  explicit ControlClient(ControlOptions options);
  ~ControlClient() override;

  const std::vector<RankAddress>& ranks() const;
  const std::string& local_address() const;  ///< address of this end of the channel

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, double timeout_seconds) override;

  /// Ends the thread and the heartbeat. Groups may keep the object alive as their store.
  void close();

  void send_status_now();
  void send_signal(const std::string& reason);
  /// Sends an error record or the goodbye. Waits up to 2 s for the coordinator's acknowledgement, and returns
  /// whether it came.
  bool send_error(ExitCode code, const std::string& text);
  bool send_goodbye(ExitCode code);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ltrain
