// Collectives between processes over TCP, on Gloo's transport.
//
// Gloo gives connections, framing and flow control; the collectives are ltrain's own, because the packaged
// Gloo has neither bf16 nor a reduce-scatter that sums in a fixed order. Every call starts with a 40-byte
// note to every other rank that says what this rank is about to do; ranks that differ throw instead of mixing
// up their data.
#pragma once
#include <memory>
#include <string>

#include "parallel/comm/communicator.h"
#include "parallel/comm/key_value_store.h"
#include "parallel/comm/peer_listener.h"

namespace ltrain {

struct GlooOptions {
  double timeout_seconds = 600;         ///< the longest that one call waits for another rank
  double connect_timeout_seconds = 60;  ///< until the others come to build the group
  double reach_seconds = 60;            ///< until one that is there answers
  int64_t scratch_bytes =
      4 << 20;  ///< for parts of other ranks on their way into a sum; see gloo_scratch_bytes
};

/// Host memory that one group of `size` ranks keeps: exactly what it allocates for parts in flight.
int64_t gloo_scratch_bytes(int size, const GlooOptions& options = {});

/// The side of this process: where it listens, and one I/O thread, shared by its groups.
class GlooTransport;
std::shared_ptr<GlooTransport> make_gloo_transport(std::shared_ptr<PeerListener> listener);
/// Bytes that have moved since the last call are progress (base/progress.h). Safe from any thread.
void note_progress_of(GlooTransport& transport);
/// `address`: numeric address or host name to listen on, e.g. "127.0.0.1"; `interface` ("eth0") wins when not
/// empty.
std::shared_ptr<GlooTransport> make_gloo_transport(const std::string& address,
                                                   const std::string& interface = "");

/// Collective over the group: all `size` ranks call it with the same store and the same `key`, which no other
/// group of the job uses.
std::unique_ptr<Communicator> make_gloo_group(std::shared_ptr<GlooTransport> transport,
                                              std::shared_ptr<KeyValueStore> store, const std::string& key,
                                              int rank, int size, std::string name, AxisSet axes,
                                              const GlooOptions& options = {});

}  // namespace ltrain
