// Collectives between processes over TCP, on Gloo's transport.
//
// Gloo provides connections, framing and flow control. The collectives are ltrain's, because the packaged
// Gloo has neither bf16 nor a reduce-scatter with a fixed order of sums. Every call starts with a 40-byte
// note to every other rank that describes the call; ranks with different calls throw instead of mixing up
// their data.
#pragma once
#include <memory>
#include <string>

#include "parallel/comm/communicator.h"
#include "parallel/comm/key_value_store.h"
#include "parallel/comm/peer_listener.h"

namespace ltrain {

struct GlooOptions {
  double timeout_seconds = 600;         ///< longest wait of one call for another rank
  double connect_timeout_seconds = 60;  ///< wait for the others when the group is built
  double reach_seconds = 60;            ///< wait for an answer of a rank that is there
  int64_t scratch_bytes =
      4 << 20;  ///< memory for other ranks' parts on their way into a sum; see gloo_scratch_bytes
};

/// Host memory of one group of `size` ranks: exactly its allocation for parts in flight.
int64_t gloo_scratch_bytes(int size, const GlooOptions& options = {});

/// Transport of this process: its listening port and one I/O thread, shared by its groups.
class GlooTransport;
std::shared_ptr<GlooTransport> make_gloo_transport(std::shared_ptr<PeerListener> listener);
/// Reports bytes moved since the last call as progress (base/progress.h). Safe from any thread.
void note_progress_of(GlooTransport& transport);
/// `address`: numeric address or host name to listen on, e.g. "127.0.0.1"; `interface` ("eth0") takes
/// precedence unless empty.
std::shared_ptr<GlooTransport> make_gloo_transport(const std::string& address,
                                                   const std::string& interface = "");

/// Collective over the group: all `size` ranks call it with the same store and the same `key`, which no other
/// group of the job uses.
std::unique_ptr<Communicator> make_gloo_group(std::shared_ptr<GlooTransport> transport,
                                              std::shared_ptr<KeyValueStore> store, const std::string& key,
                                              int rank, int size, std::string name, AxisSet axes,
                                              const GlooOptions& options = {});

}  // namespace ltrain
