// Gloo's connections, over sockets that are connected here. Gloo itself accepts the first connection to a
// peer's port and trusts it. Here both sides have proved that they belong to the job (peer_listener.h) before
// Gloo gets the socket.
#pragma once
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fd.h"

namespace ltrain {

/// Gloo's I/O thread, with a way to run work on it.
class GlooLoop {
 public:
  GlooLoop();
  ~GlooLoop();
  GlooLoop(const GlooLoop&) = delete;
  const std::shared_ptr<gloo::transport::tcp::Device>& device() const { return device_; }
  /// Runs `work` on the thread, which polls no socket meanwhile, and waits for it. Rethrows.
  void run(const std::function<void()>& work);

 private:
  class Task;
  std::unique_ptr<Task> task_;
  std::mutex mutex_;                                      // one task at a time
  std::shared_ptr<gloo::transport::tcp::Device> device_;  // destroyed before task_, together with its thread
};

/// Connections of one rank to the others of a group.
struct GlooConnections {
  struct Socket {
    int fd = -1;
    ino_t inode = 0;
  };
  std::shared_ptr<gloo::transport::Context> context;
  std::vector<Socket> sockets;  ///< owned by Gloo
};

/// Connects to each other rank over the socket that `connected(rank)` returns, called in ascending order of
/// ranks.
GlooConnections connect_gloo(GlooLoop& loop, int rank, int size,
                             const std::function<Fd(int rank)>& connected);

/// Bytes moved over these sockets, in both directions, counted by the kernel.
uint64_t bytes_moved(const std::vector<GlooConnections::Socket>& sockets);

}  // namespace ltrain
