#include "parallel/offload.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/core/device.h"
#include "kernels/core/fault_point.h"
#include "kernels/core/fd.h"
#include "kernels/core/placement_rules.h"

namespace ltrain {
namespace {

class FileMemory final : public SlowMemory {
 public:
  FileMemory(std::string folder, SlowUse use)
      : folder_(std::move(folder)), use_(std::move(use)), stream_(make_worker_stream(use_.key)) {}
  ~FileMemory() override {
    stream_.reset();  // its work uses the file
    if (map_) munmap(map_, static_cast<size_t>(bytes_));
  }

  void reserve(int64_t bytes) override {
    LT_CHECK(!map_, "states are laid out once");
    bytes_ = bytes;
    if (bytes == 0) return;
    fd_ = Fd(open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (!fd_.valid() && (errno == EOPNOTSUPP || errno == EISDIR)) {  // a file system without O_TMPFILE
      std::string name = folder_ + "/.offload-XXXXXX";
      fd_ = Fd(mkostemp(name.data(), O_CLOEXEC));
      if (fd_.valid()) unlink(name.c_str());
    }
    if (!fd_.valid()) refuse("cannot be written", errno);
    // Takes the blocks now, so that a disk that others fill stops no step.
    if (const int error = posix_fallocate(fd_.get(), 0, bytes)) refuse("has no room", error);
    map_ = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    if (map_ == MAP_FAILED) {
      map_ = nullptr;
      refuse("cannot be mapped", errno);
    }
  }

  void* at(int64_t offset) override { return static_cast<char*>(map_) + offset; }

  void fetch(const Tensor& t, int64_t offset) override {
    stream_->launch([this, t, offset] {
      char* to = static_cast<char*>(t.data);
      move("read", t.bytes(), offset,
           [&](int64_t done, size_t n) { return pread(fd_.get(), to + done, n, offset + done); });
    });
  }
  void store(const Tensor& t, int64_t offset) override {
    stream_->launch([this, t, offset] {
      const char* from = static_cast<const char*>(t.data);
      move("written", t.bytes(), offset, [&](int64_t done, size_t n) -> ssize_t {
        if (LT_FAULT_POINT("offload.store") == FaultAction::skip) return errno = ENOSPC, -1;
        return pwrite(fd_.get(), from + done, n, offset + done);
      });
    });
  }
  Stream& stream() override { return *stream_; }

 private:
  [[noreturn]] void refuse(const char* what, int error) const {
    fail(ExitCode::storage, "{}.path {}: {} for {} bytes of {}: {}", use_.key, folder_, what, bytes_,
         use_.what, std::strerror(error));
  }
  template <class F>
  void move(const char* what, int64_t bytes, int64_t offset, F step) const {
    for (int64_t done = 0; done < bytes;) {
      const ssize_t n = step(done, static_cast<size_t>(bytes - done));
      if (n > 0) done += n;
      if (n > 0 || (n < 0 && errno == EINTR)) continue;
      fail(ExitCode::storage, "{}.path {}: {} could not be {} at byte {}: {}; the last checkpoint is intact",
           use_.key, folder_, use_.what, what, offset + done,
           n == 0 ? "the file ends there" : std::strerror(errno));
    }
  }

  std::string folder_;
  SlowUse use_;
  int64_t bytes_ = 0;
  Fd fd_;
  void* map_ = nullptr;
  std::unique_ptr<Stream> stream_;
};

class HostMemory final : public SlowMemory {
 public:
  HostMemory(DeviceKind device, const SlowUse& use)
      : device_(device), stream_(make_side_stream(device, use.key)) {}
  ~HostMemory() override { stream_.reset(); }
  void reserve(int64_t bytes) override {
    if (bytes == 0) return;
    memory_ = host_memory(device_, bytes);
    std::memset(memory_.get(), 0, static_cast<size_t>(bytes));
  }
  void* at(int64_t offset) override { return static_cast<char*>(memory_.get()) + offset; }
  void fetch(const Tensor& t, int64_t offset) override { stream_->copy(t.data, at(offset), t.bytes()); }
  void store(const Tensor& t, int64_t offset) override { stream_->copy(at(offset), t.data, t.bytes()); }
  Stream& stream() override { return *stream_; }

 private:
  DeviceKind device_;
  std::shared_ptr<void> memory_;
  std::unique_ptr<Stream> stream_;
};

/// Priced as copies in memory: profiles have no rate of disks.
class MetaSlowMemory final : public SlowMemory {
 public:
  MetaSlowMemory(MetaTrace& trace, const std::string& name) : stream_(make_meta_stream(name, trace)) {}
  void reserve(int64_t) override {}
  void* at(int64_t) override { return nullptr; }
  void fetch(const Tensor& t, int64_t) override {
    stream_->meta()->add(*stream_, op_cost("offload_fetch", OpClass::elementwise, 0, {t}, {}));
  }
  void store(const Tensor& t, int64_t) override {
    stream_->meta()->add(*stream_, op_cost("offload_store", OpClass::elementwise, 0, {}, {t}));
  }
  Stream& stream() override { return *stream_; }

 private:
  std::unique_ptr<Stream> stream_;
};

}  // namespace

std::unique_ptr<SlowMemory> make_file_memory(const std::string& folder, const SlowUse& use) {
  return std::make_unique<FileMemory>(folder, use);
}
std::unique_ptr<SlowMemory> make_host_memory(DeviceKind device, const SlowUse& use) {
  return std::make_unique<HostMemory>(device, use);
}
std::unique_ptr<SlowMemory> make_meta_slow_memory(MetaTrace& trace, const std::string& name) {
  return std::make_unique<MetaSlowMemory>(trace, name);
}

}  // namespace ltrain
