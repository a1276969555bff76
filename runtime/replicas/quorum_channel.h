// Connections between the quorum of a job and the ranks of its replicas. Both sides show that they know the
// job's token (runtime/launch/job_key.h) before anything else is read.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/fd.h"
#include "parallel/comm/key_value_store.h"
#include "runtime/launch/message.h"
#include "runtime/replicas/quorum.h"

namespace ltrain {

/// One side of a connection that has proved itself: whole messages, one after the other.
class QuorumChannel {
 public:
  /// Connects, and tries again for `seconds`. Throws Error (rank_lost) with the reason.
  static QuorumChannel connect(const std::string& host, int port, const std::string& token, double seconds);
  /// The server's side of a fresh connection; an invalid channel if the other side is a stranger.
  static QuorumChannel accept(Fd socket, const std::string& token);

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  /// Returns false if the connection has ended.
  bool send(std::string frame);
  /// Waits for a message. `go_on`: asked several times a second; false ends the wait. Null, if the connection
  /// has ended, or the other side does not keep to the protocol.
  std::optional<Message> receive(const std::function<bool()>& go_on);
  /// Returns whether the other side has closed the connection.
  bool ended() const;

 private:
  Fd fd_;
  FrameBuffer in_;
};

/// Listens for the ranks of all replicas, with a thread for each connection.
class QuorumServer {
 public:
  /// `port`: 0: any free one. Throws Error (usage) if it is not free.
  QuorumServer(QuorumSettings quorum, int port, std::string token);
  ~QuorumServer();
  QuorumServer(const QuorumServer&) = delete;
  int port() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct QuorumAddress {
  std::string host;
  int port = 0;
  std::string token;
  int replica = 0;
};

/// A rank's side. The first rank of a replica votes for it.
class QuorumClient final : public KeyValueStore {
 public:
  /// `settings`: job_settings() of the recipe, equal on all replicas. Throws Error (usage) if they differ.
  QuorumClient(const QuorumAddress& address, int rank, const std::string& settings, double join_seconds);

  std::string local_address() const;  ///< address of this end of the connection
  /// Quorum::vote. `stop`: asked while it waits; true ends the wait with Error (preempted).
  Membership vote(const Vote& vote, const std::function<bool()>& stop);
  /// set() and get() are for groups of this epoch.
  void begin_epoch(int64_t epoch) { epoch_ = epoch; }
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, double timeout_seconds) override;

 private:
  Message ask(std::string frame, MessageType expected, const std::function<bool()>& go_on);

  std::mutex mutex_;
  QuorumChannel channel_;
  int64_t epoch_ = 0;
};

}  // namespace ltrain
