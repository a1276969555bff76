// io_uring of the kernel, as far as reads and writes of files need it: several under way at once, from one
// thread.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace ltrain {

class IoRing {
 public:
  struct Done {
    uint64_t tag = 0;
    int64_t result = 0;  ///< bytes, or the negative of an errno
  };
  virtual ~IoRing() = default;
  /// At most `entries` of make_io_ring() between this and their wait().
  virtual void queue(bool write, int fd, void* data, uint32_t bytes, int64_t offset, uint64_t tag) = 0;
  /// Hands over what is queued, and waits for any that is under way.
  virtual Done wait() = 0;
};

/// Null where the kernel has none, or refuses it (sandboxes do), or LTRAIN_IO=pread; `why` then says so.
std::unique_ptr<IoRing> make_io_ring(unsigned entries, std::string& why);

}  // namespace ltrain
