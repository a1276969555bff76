#include "kernels/storage/offload_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "base/fault_point.h"

namespace ltrain {
namespace {

constexpr int64_t kPart = 1 << 19;  // bytes of one request
constexpr int kParts = 4;           // requests in flight
static_assert(kParts * kPart == kFileBuffers);

}  // namespace

/// Buffers of full blocks for direct I/O.
struct OffloadFile::Buffers {
  Buffers() : data(static_cast<char*>(std::aligned_alloc(kOffloadBlock, kParts * kPart))) {
    if (!data) throw std::bad_alloc();
  }
  ~Buffers() { std::free(data); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  char* data;
};

OffloadFile::OffloadFile(std::string folder, OffloadUse use)
    : folder_(std::move(folder)), use_(std::move(use)) {}

OffloadFile::~OffloadFile() {
  if (map_) munmap(map_, static_cast<size_t>(bytes_));
}

void OffloadFile::reserve(int64_t bytes) {
  LT_CHECK(!map_, "expected one reserve() of offload memory, got a second one");
  bytes_ = bytes;
  if (bytes == 0) return;
  fd_ = Fd(open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd_.valid() && (errno == EOPNOTSUPP || errno == EISDIR)) {  // the file system lacks O_TMPFILE
    std::string name = folder_ + "/.offload-XXXXXX";
    fd_ = Fd(mkostemp(name.data(), O_CLOEXEC));
    if (fd_.valid()) unlink(name.c_str());
  }
  if (!fd_.valid()) refuse("cannot be written", errno);
  // Allocates the blocks now, so that a disk that fills up later stops no step.
  if (const int error = posix_fallocate(fd_.get(), 0, bytes)) refuse("has no room", error);
  map_ = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (map_ == MAP_FAILED) {
    map_ = nullptr;
    refuse("cannot be mapped", errno);
  }
  open_direct();
  std::string why;
  ring_ = make_io_ring(kParts, why);
  how_ = (ring_ ? "io_uring" : "pread and pwrite (" + why + ")") +
         (buffers_ ? ", past the page cache" : ", through the page cache");
}

void OffloadFile::release() const {
  // shared mapping: the file has all data
  if (map_) madvise(map_, static_cast<size_t>(bytes_), MADV_DONTNEED);
}

void OffloadFile::write(char* data, int64_t bytes, int64_t offset) {
  if (LT_FAULT_POINT("offload.store") == FaultAction::skip) broken(true, offset, ENOSPC);
  move(true, data, bytes, offset);
}

void OffloadFile::refuse(const char* what, int error) const {
  fail(ExitCode::storage, "{}.path {}: {} for {} bytes of {}: {}", use_.key, folder_, what, bytes_, use_.what,
       std::strerror(error));
}

void OffloadFile::broken(bool write, int64_t offset, int error) const {
  fail(ExitCode::storage, "{}.path {}: {} could not be {} at byte {}: {}; the last checkpoint is intact",
       use_.key, folder_, use_.what, write ? "written" : "read", offset,
       error == 0 ? "the file ends there" : std::strerror(error));
}

/// Opens the same file again without the page cache, if a test read succeeds.
void OffloadFile::open_direct() {
  Fd fd(open(fmt::format("/proc/self/fd/{}", fd_.get()).c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  if (!fd.valid()) return;
  auto buffers = std::make_unique<Buffers>();
  const int64_t n = std::min(bytes_, kOffloadBlock);
  if (pread(fd.get(), buffers->data, static_cast<size_t>(kOffloadBlock), 0) != n) return;
  direct_ = std::move(fd);
  buffers_ = std::move(buffers);
}

void OffloadFile::move(bool write, char* data, int64_t bytes, int64_t offset) {
  // Full blocks bypass the cache; the rest of a window is less than one block.
  const int64_t whole = buffers_ && offset % kOffloadBlock == 0 ? bytes / kOffloadBlock * kOffloadBlock : 0;
  if (ring_ && !buffers_) return by_ring(write, false, data, bytes, offset);
  if (ring_) {
    by_ring(write, true, data, whole, offset);
  } else {
    for (int64_t done = 0; done < whole; done += kPart) {
      const int64_t n = std::min(kPart, whole - done);
      if (write) std::memcpy(buffers_->data, data + done, static_cast<size_t>(n));
      by_calls(direct_.get(), write, buffers_->data, n, offset + done);
      if (!write) std::memcpy(data + done, buffers_->data, static_cast<size_t>(n));
    }
  }
  by_calls(fd_.get(), write, data + whole, bytes - whole, offset + whole);
}

void OffloadFile::by_calls(int fd, bool write, char* data, int64_t bytes, int64_t offset) const {
  for (int64_t done = 0; done < bytes;) {
    const size_t left = static_cast<size_t>(bytes - done);
    const ssize_t n =
        write ? pwrite(fd, data + done, left, offset + done) : pread(fd, data + done, left, offset + done);
    if (n > 0) done += n;
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    broken(write, offset + done, n == 0 ? 0 : errno);
  }
}

/// Several requests at once. `direct`: bypasses the cache, through the buffers unless `data` is at a multiple
/// of a block.
void OffloadFile::by_ring(bool write, bool direct, char* data, int64_t bytes, int64_t offset) {
  const bool through = direct && reinterpret_cast<uintptr_t>(data) % kOffloadBlock != 0;
  int64_t begins[kParts] = {}, asked = 0;
  int under_way = 0, error = 0;
  int64_t wrong = 0;
  std::vector<std::pair<int64_t, int64_t>> rest;  // missing ranges of partial transfers: from, to
  const auto buffer = [&](int slot) { return buffers_->data + slot * kPart; };
  const auto size = [&](int64_t begin) { return std::min(kPart, bytes - begin); };
  const auto ask = [&](int slot) {
    if (asked >= bytes || error) return;
    const int64_t n = size(asked);
    if (through && write) std::memcpy(buffer(slot), data + asked, static_cast<size_t>(n));
    ring_->queue(write, direct ? direct_.get() : fd_.get(), through ? buffer(slot) : data + asked,
                 static_cast<uint32_t>(n), offset + asked, static_cast<uint64_t>(slot));
    begins[slot] = asked;
    asked += n;
    ++under_way;
  };
  for (int slot = 0; slot < kParts; ++slot) ask(slot);
  while (under_way > 0) {  // waits for all, failed or not: until then the kernel uses the buffers
    const IoRing::Done done = ring_->wait();
    --under_way;
    const int slot = static_cast<int>(done.tag);
    const int64_t begin = begins[slot], n = size(begin);
    const bool retry = done.result == -EINTR || done.result == -EAGAIN;
    if (done.result < 0 && !retry) {
      if (!error) error = static_cast<int>(-done.result), wrong = offset + begin;
      continue;
    }
    if (through && !write && done.result > 0)
      std::memcpy(data + begin, buffer(slot), static_cast<size_t>(done.result));
    if (const int64_t got = retry ? 0 : done.result; got < n) rest.emplace_back(begin + got, begin + n);
    ask(slot);
  }
  if (error) broken(write, wrong, error);
  for (const auto& [from, to] : rest)  // plain calls give the reason of a failure
    by_calls(fd_.get(), write, data + from, to - from, offset + from);
}

}  // namespace ltrain
