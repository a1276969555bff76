// Subset of Linux io_uring for file reads and writes: several in flight at once, from one thread.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace ltrain {

class IoRing {
 public:
  struct Done {
    uint64_t tag = 0;
    int64_t result = 0;  ///< bytes, or a negative errno
  };
  virtual ~IoRing() = default;
  /// Queues a transfer. At most `entries` of make_io_ring() may be queued or in flight.
  virtual void queue(bool write, int fd, void* data, uint32_t bytes, int64_t offset, uint64_t tag) = 0;
  /// Submits the queue and waits for any transfer in flight.
  virtual Done wait() = 0;
};

/// Null if the kernel lacks io_uring or refuses it (sandboxes do), or with LTRAIN_IO=pread; `why` is the
/// reason.
std::unique_ptr<IoRing> make_io_ring(unsigned entries, std::string& why);

}  // namespace ltrain
