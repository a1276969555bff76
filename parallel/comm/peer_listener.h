// TCP connections between the ranks of a job, for data. A rank listens at one port; where, and two secrets
// that it has just made up, it leaves with the job's store, which only ranks of the job can read. Who
// connects shows one secret and is shown the other; nobody else gets further than that, or keeps anybody
// waiting.
#pragma once
#include <memory>
#include <string>

#include "base/fd.h"
#include "parallel/comm/key_value_store.h"

namespace ltrain {

class PeerListener {
 public:
  /// `address`: numeric address or host name to listen on; `interface` ("eth0") wins when not empty.
  explicit PeerListener(const std::string& address, const std::string& interface = "");
  ~PeerListener();
  PeerListener(const PeerListener&) = delete;

  const std::string& address() const;  ///< numeric, that it listens on
  /// What connect_to_peer needs, for the store.
  std::string published() const;
  /// The connection that rank `from` makes for `key`; invalid when it has not come after so long.
  Fd accept(const std::string& key, int from, double seconds);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// How long a connection is waited for, in seconds.
struct PeerWaits {
  double peer = 60;   ///< until the other rank is there
  double reach = 60;  ///< until it answers, when it is
};

/// What all ranks of a group do for each other rank they are to be connected with: the lower one of the two
/// listens. `group` and `key` name the group, for people and for the job. Throws Error (rank_lost).
void publish_peer(const PeerListener& listener, KeyValueStore& store, const std::string& key, int rank);
Fd meet_peer(PeerListener& listener, KeyValueStore& store, const std::string& group, const std::string& key,
             int rank, int peer, const PeerWaits& waits);

/// Connects, as rank `from` and for `key`, to who published that. Tries again until `seconds` are over; an
/// invalid Fd, and why, when it is in vain.
Fd connect_to_peer(const std::string& published, const std::string& key, int from, double seconds,
                   std::string* why);

/// Throws Error (usage) when this host has no network interface of that name with an address.
void check_interface(const std::string& name);

}  // namespace ltrain
