// TCP connections for data between the ranks of a job. A rank listens at one port. Its address and two fresh
// secrets are in the job's store, which only ranks of the job can read. The connecting side shows one secret
// and is shown the other. Strangers get no further, and block no one.
#pragma once
#include <memory>
#include <string>

#include "base/fd.h"
#include "parallel/comm/key_value_store.h"

namespace ltrain {

class PeerListener {
 public:
  /// `address`: numeric address or host name to listen on; `interface` ("eth0") takes precedence unless
  /// empty.
  explicit PeerListener(const std::string& address, const std::string& interface = "");
  ~PeerListener();
  PeerListener(const PeerListener&) = delete;

  const std::string& address() const;  ///< numeric listening address
  /// Address and secrets for connect_to_peer, to be put in the store.
  std::string published() const;
  /// The connection from rank `from` for `key`; invalid if it has not come within `seconds`.
  Fd accept(const std::string& key, int from, double seconds);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Waits for a connection, in seconds.
struct PeerWaits {
  double peer = 60;   ///< until the other rank is there
  double reach = 60;  ///< until an answer of a rank that is there
};

/// Connection to another rank of a group; the lower rank of a pair listens. Each rank first calls
/// publish_peer(), then meet_peer() for each peer. `group` and `key` name the group, for people and for the
/// job. Throws Error (rank_lost).
void publish_peer(const PeerListener& listener, KeyValueStore& store, const std::string& key, int rank);
Fd meet_peer(PeerListener& listener, KeyValueStore& store, const std::string& group, const std::string& key,
             int rank, int peer, const PeerWaits& waits);

/// Connects, as rank `from` and for `key`, to the rank that wrote `published`. Tries again for `seconds`;
/// returns an invalid Fd, and the reason, if it fails.
Fd connect_to_peer(const std::string& published, const std::string& key, int from, double seconds,
                   std::string* why);

/// Throws Error (usage) if this host has no network interface of that name with an address.
void check_interface(const std::string& name);

}  // namespace ltrain
