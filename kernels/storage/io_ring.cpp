#include "kernels/storage/io_ring.h"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace ltrain {
namespace {

/// A part of the memory that is shared with the kernel.
class Mapping {
 public:
  Mapping(int fd, size_t bytes, uint64_t which)
      : bytes_(bytes),
        at_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                 static_cast<off_t>(which))) {}
  ~Mapping() {
    if (valid()) munmap(at_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  bool valid() const { return at_ != MAP_FAILED; }
  template <class T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(at_) + offset);
  }

 private:
  size_t bytes_;
  void* at_;
};

class KernelRing final : public IoRing {
 public:
  KernelRing(int fd, const io_uring_params& p)
      : fd_(fd),
        submissions_(fd, p.sq_off.array + p.sq_entries * sizeof(uint32_t), IORING_OFF_SQ_RING),
        completions_(fd, p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING),
        entries_(fd, p.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES),
        p_(p) {}
  bool valid() const { return submissions_.valid() && completions_.valid() && entries_.valid(); }

  void queue(bool write, int fd, void* data, uint32_t bytes, int64_t offset, uint64_t tag) override {
    LT_CHECK(under_way_ < p_.sq_entries, "{} transfers under way on a ring of {}", under_way_, p_.sq_entries);
    uint32_t& tail = *submissions_.at<uint32_t>(p_.sq_off.tail);
    const uint32_t slot = tail & *submissions_.at<uint32_t>(p_.sq_off.ring_mask);
    io_uring_sqe& e = entries_.at<io_uring_sqe>(0)[slot];
    std::memset(&e, 0, sizeof e);
    e.opcode = write ? IORING_OP_WRITE : IORING_OP_READ;
    e.fd = fd;
    e.addr = reinterpret_cast<uint64_t>(data);
    e.len = bytes;
    e.off = static_cast<uint64_t>(offset);
    e.user_data = tag;
    submissions_.at<uint32_t>(p_.sq_off.array)[slot] = slot;
    std::atomic_ref(tail).store(tail + 1, std::memory_order_release);  // the kernel reads what is before it
    ++queued_;
    ++under_way_;
  }

  Done wait() override {
    LT_CHECK(under_way_ > 0, "nothing is under way on the ring");
    uint32_t& head = *completions_.at<uint32_t>(p_.cq_off.head);
    uint32_t& tail = *completions_.at<uint32_t>(p_.cq_off.tail);
    while (queued_ > 0 || head == std::atomic_ref(tail).load(std::memory_order_acquire)) {
      const long n = syscall(SYS_io_uring_enter, fd_.get(), queued_, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
      if (n >= 0) {
        queued_ -= static_cast<unsigned>(n);
      } else if (errno != EINTR && errno != EAGAIN && errno != EBUSY) {
        fail(ExitCode::storage, "io_uring_enter: {}; LTRAIN_IO=pread does without", std::strerror(errno));
      }
    }
    const io_uring_cqe& e =
        completions_.at<io_uring_cqe>(p_.cq_off.cqes)[head & *completions_.at<uint32_t>(p_.cq_off.ring_mask)];
    const Done done{e.user_data, e.res};
    std::atomic_ref(head).store(head + 1, std::memory_order_release);
    --under_way_;
    return done;
  }

 private:
  Fd fd_;
  Mapping submissions_, completions_, entries_;
  io_uring_params p_;
  unsigned queued_ = 0, under_way_ = 0;
};

}  // namespace

std::unique_ptr<IoRing> make_io_ring(unsigned entries, std::string& why) {
  const char* choice = std::getenv("LTRAIN_IO");
  const std::string io = choice ? choice : "auto";
  if (io != "auto" && io != "uring" && io != "pread")
    fail(ExitCode::usage, "LTRAIN_IO={}: must be auto, uring or pread", io);
  if (io == "pread") return why = "LTRAIN_IO=pread", nullptr;
  io_uring_params p = {};
  const int fd = static_cast<int>(syscall(SYS_io_uring_setup, entries, &p));
  const int error = errno;
  std::unique_ptr<KernelRing> ring;
  if (fd >= 0) ring = std::make_unique<KernelRing>(fd, p);
  if (ring && ring->valid()) return ring;
  why = fd < 0 ? std::string("io_uring_setup: ") + std::strerror(error) : "io_uring cannot be mapped";
  if (io == "uring") fail(ExitCode::usage, "LTRAIN_IO=uring: {}; unset it", why);
  return nullptr;
}

}  // namespace ltrain
