// Gloo's connections, over sockets that are connected here. Gloo itself takes whoever connects first to a
// port for one of its peers, and believes what he sends; here both sides have shown that they are of the job
// (peer_listener.h) before Gloo sees the socket.
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

/// Gloo's I/O thread, with a way in.
class GlooLoop {
 public:
  GlooLoop();
  ~GlooLoop();
  GlooLoop(const GlooLoop&) = delete;
  const std::shared_ptr<gloo::transport::tcp::Device>& device() const { return device_; }
  /// Runs `work` on the thread, which looks at no socket meanwhile, and waits for it. Rethrows.
  void run(const std::function<void()>& work);

 private:
  class Task;
  std::unique_ptr<Task> task_;
  std::mutex mutex_;                                      // one piece of work at a time
  std::shared_ptr<gloo::transport::tcp::Device> device_;  // goes before task_, and its thread with it
};

/// The connections of one rank to the others of a group.
struct GlooConnections {
  struct Socket {
    int fd = -1;
    ino_t inode = 0;
  };
  std::shared_ptr<gloo::transport::Context> context;
  std::vector<Socket> sockets;  ///< that Gloo owns
};

/// With each other rank over the socket that `connected(rank)` gives, called in ascending order of ranks.
GlooConnections connect_gloo(GlooLoop& loop, int rank, int size,
                             const std::function<Fd(int rank)>& connected);

/// Bytes that have moved over these, both ways, as the kernel has counted.
uint64_t bytes_moved(const std::vector<GlooConnections::Socket>& sockets);

}  // namespace ltrain
