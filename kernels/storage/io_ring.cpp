#include "kernels/storage/io_ring.h"

#include <liburing.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace ltrain {
namespace {

[[noreturn]] void fail_ring(const char* call, int error) {
  fail(ExitCode::storage, "{}: {}; LTRAIN_IO=pread does without", call, std::strerror(error));
}

class KernelRing final : public IoRing {
 public:
  /// Does not throw: `error()` is an errno if there is no ring.
  explicit KernelRing(unsigned entries) : error_(-io_uring_queue_init(entries, &ring_, 0)) {}
  ~KernelRing() override {
    if (error_ == 0) io_uring_queue_exit(&ring_);
  }
  int error() const { return error_; }

  void queue(bool write, int fd, void* data, uint32_t bytes, int64_t offset, uint64_t tag) override {
    io_uring_sqe* e = io_uring_get_sqe(&ring_);
    LT_CHECK(e && under_way_ < ring_.sq.ring_entries, "expected fewer than {} transfers under way, got {}",
             ring_.sq.ring_entries, under_way_);
    if (write)
      io_uring_prep_write(e, fd, data, bytes, static_cast<uint64_t>(offset));
    else
      io_uring_prep_read(e, fd, data, bytes, static_cast<uint64_t>(offset));
    io_uring_sqe_set_data64(e, tag);
    ++under_way_;
  }

  Done wait() override {
    LT_CHECK(under_way_ > 0, "expected a transfer under way, got none");
    io_uring_cqe* e = nullptr;
    while (io_uring_sq_ready(&ring_) > 0 || io_uring_peek_cqe(&ring_, &e) != 0)
      if (const int n = io_uring_submit_and_wait(&ring_, 1);
          n < 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY)
        fail_ring("io_uring_enter", -n);
    const Done done{io_uring_cqe_get_data64(e), e->res};
    io_uring_cqe_seen(&ring_, e);
    --under_way_;
    return done;
  }

 private:
  io_uring ring_;
  int error_;
  unsigned under_way_ = 0;
};

}  // namespace

std::unique_ptr<IoRing> make_io_ring(unsigned entries, std::string& why) {
  const char* choice = std::getenv("LTRAIN_IO");
  const std::string io = choice ? choice : "auto";
  if (io != "auto" && io != "uring" && io != "pread")
    fail(ExitCode::usage, "LTRAIN_IO={}: must be auto, uring or pread", io);
  if (io == "pread") return why = "LTRAIN_IO=pread", nullptr;
  auto ring = std::make_unique<KernelRing>(entries);
  if (ring->error() == 0) return ring;
  why = std::string("io_uring_setup: ") + std::strerror(ring->error());
  if (io == "uring") fail(ExitCode::usage, "LTRAIN_IO=uring: {}; unset it", why);
  return nullptr;
}

}  // namespace ltrain
