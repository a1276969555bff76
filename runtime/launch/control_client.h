// A rank's side of the control channel: joins, keeps the heart beating from a small thread, looks up keys,
// and ends the process when the coordinator says so or is gone.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "parallel/comm/key_value_store.h"
#include "runtime/launch/environment.h"
#include "runtime/launch/rank_status.h"

namespace ltrain {

struct RankAddress {
  std::string host, address;
  std::string identity;  ///< of shared_memory_identity()
};

struct ControlOptions {
  LaunchEnvironment environment;
  std::string host;      ///< of this rank
  std::string identity;  ///< of this process: shared_memory_identity()
  std::string settings;  ///< "key: value" lines of the recipe: those of all ranks are equal
  double join_seconds = 60;
  bool coordinator_can_sleep = false;  ///< it is our launcher on this host: Ctrl-Z may stop it for a while
  std::function<RankStatus()> status;  ///< called by the heartbeat thread
  std::function<void(const std::string& reason)> on_stop;
  /// Called once, from the thread: the run has failed elsewhere, or the coordinator is gone. The process has
  /// LivenessBounds::end_grace to leave by itself.
  std::function<void(ExitCode code, int culprit, const std::string& reason)> on_end;
};

class ControlClient final : public KeyValueStore {
 public:
  /// Connects and waits until all ranks have joined. Throws with what was tried when that fails; Error
  /// (usage) when the job has another recipe than this rank.
  explicit ControlClient(ControlOptions options);
  ~ControlClient() override;

  const std::vector<RankAddress>& ranks() const;
  const std::string& local_address() const;  ///< of this end of the channel

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, double timeout_seconds) override;

  /// Ends the thread and the heartbeat; groups may keep the object alive as their store.
  void close();

  void send_status_now();
  void send_signal(const std::string& reason);
  /// Sends an error record, or the goodbye, and waits up to 2 s until the coordinator has it. True when it
  /// has.
  bool send_error(ExitCode code, const std::string& text);
  bool send_goodbye(ExitCode code);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ltrain
