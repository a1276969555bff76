// Offload memory in a file, for the CPU and for a device with its own memory.
#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/storage/offload_file.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/host_work.h"
#include "kernels/tensor/timeline.h"

namespace ltrain {
namespace {

class FileMemory final : public OffloadMemory {
 public:
  FileMemory(const std::string& folder, const OffloadUse& use)
      : file_(folder, use), stream_(make_worker_stream(use.key)) {}
  ~FileMemory() override { stream_.reset(); }  // before file_: its work uses the file

  void reserve(int64_t bytes) override { file_.reserve(bytes); }
  void* at(int64_t offset) override { return file_.at(offset); }
  void release() override { file_.release(); }
  void fetch(const Tensor& t, int64_t offset) override {
    const OpRange range(*stream_, "offload_fetch");
    stream_->launch([this, t, offset] { file_.read(static_cast<char*>(t.data), t.bytes(), offset); });
  }
  void store(const Tensor& t, int64_t offset) override {
    const OpRange range(*stream_, "offload_store");
    stream_->launch([this, t, offset] { file_.write(static_cast<char*>(t.data), t.bytes(), offset); });
  }
  Stream& stream() override { return *stream_; }
  std::string how() const override { return file_.how(); }

 private:
  OffloadFile file_;
  std::unique_ptr<Stream> stream_;
};

/// Bytes go between the file and a pinned slot on one stream, and between the slot and the device on another.
/// The file is accessed in the order of the calls.
class DeviceFileMemory final : public OffloadMemory {
 public:
  DeviceFileMemory(DeviceKind device, const std::string& folder, const OffloadUse& use)
      : file_(folder, use),
        device_(device),
        files_(make_side_stream(device, use.key + ", files")),
        copies_(make_side_stream(device, use.key)) {}
  ~DeviceFileMemory() override { files_.reset(), copies_.reset(); }

  void reserve(int64_t bytes) override {
    file_.reserve(bytes);
    if (bytes == 0) return;
    pinned_ = host_memory(device_, kPinnedFileBuffers + kOffloadBlock);
    const auto at = reinterpret_cast<uintptr_t>(pinned_.get());
    char* first = static_cast<char*>(pinned_.get()) + (kOffloadBlock - at % kOffloadBlock) % kOffloadBlock;
    for (int i = 0; i < kSlots; ++i) slots_[i].data = first + i * kFileBuffers;
    views_ = first + kSlots * kFileBuffers;
  }
  void* at(int64_t offset) override { return file_.at(offset); }

  Tensor view(Stream& on, const Tensor& t) override {
    if (!file_.holds(t.data)) return t;
    LT_CHECK(viewed_bytes_ + t.bytes() <= kOffloadTouch,
             "expected at most {} bytes of offload memory in views, got {}", kOffloadTouch,
             viewed_bytes_ + t.bytes());
    Tensor copy = t;
    copy.data = views_ + viewed_bytes_;
    std::memcpy(copy.data, t.data, static_cast<size_t>(t.bytes()));
    viewed_.push_back({t.data, copy.data, static_cast<size_t>(t.bytes())});
    viewed_bytes_ += (t.bytes() + kAlign - 1) / kAlign * kAlign;
    viewer_ = &on;
    return copy;
  }
  void release() override {
    if (!viewed_.empty()) viewer_->synchronize();
    for (const Viewed& v : viewed_) std::memcpy(v.home, v.copy, v.bytes);
    viewed_.clear();
    viewed_bytes_ = 0;
    file_.release();
  }

  void fetch(const Tensor& t, int64_t offset) override {
    const OpRange range(*copies_, kFileFetch);
    failure_.check();
    // The caller makes the copies stream wait for the tensor's memory. The file need not wait.
    for (int64_t done = 0; done < t.bytes(); done += kFileBuffers) {
      Slot& slot = next();
      const int64_t n = std::min(kFileBuffers, t.bytes() - done), from = offset + done;
      files_->wait(slot.free);
      on_file([this, &slot, n, from] { file_.read(slot.data, n, from); });
      copies_->wait(files_->record());
      copies_->copy(static_cast<char*>(t.data) + done, slot.data, n);
      slot.free = copies_->record();
    }
    tell_failure();
  }
  void store(const Tensor& t, int64_t offset) override {
    const OpRange range(*copies_, kFileStore);
    failure_.check();
    for (int64_t done = 0; done < t.bytes(); done += kFileBuffers) {
      Slot& slot = next();
      const int64_t n = std::min(kFileBuffers, t.bytes() - done), to = offset + done;
      copies_->wait(slot.free);
      copies_->copy(slot.data, static_cast<char*>(t.data) + done, n);
      files_->wait(copies_->record());
      on_file([this, &slot, n, to] { file_.write(slot.data, n, to); });
      slot.free = files_->record();
    }
    copies_->wait(files_->record());  // makes stream().synchronize() wait for the file
    tell_failure();
  }
  Stream& stream() override { return *copies_; }
  std::string how() const override { return file_.how() + ", through pinned memory"; }

 private:
  static constexpr int kSlots = 2;
  static constexpr int64_t kAlign = 64;
  static_assert(kSlots * kFileBuffers + kOffloadTouch == kPinnedFileBuffers);
  struct Slot {
    char* data = nullptr;
    Event free;  ///< happens after its bytes have moved on
  };
  struct Viewed {
    void *home, *copy;
    size_t bytes;
  };

  Slot& next() { return slots_[at_++ % kSlots]; }
  /// After a failure the file is not accessed.
  void on_file(std::function<void()> work) {
    cuda::run_on_host(*files_, [this, work = std::move(work)] {
      if (!failure_.kept()) failure_.keep(work);
    });
  }
  /// Reports a failure to whoever waits for stream().
  void tell_failure() {
    cuda::run_on_host(*copies_, [this] { failure_.check(); });
  }

  OffloadFile file_;
  HostFailure failure_;
  DeviceKind device_;
  std::shared_ptr<void> pinned_;
  Slot slots_[kSlots];
  int64_t at_ = 0;
  char* views_ = nullptr;  ///< kOffloadTouch bytes
  int64_t viewed_bytes_ = 0;
  std::vector<Viewed> viewed_;
  Stream* viewer_ = nullptr;
  std::unique_ptr<Stream> files_, copies_;
};

}  // namespace

std::unique_ptr<OffloadMemory> make_file_memory(DeviceKind device, const std::string& folder,
                                                const OffloadUse& use) {
  if (device == DeviceKind::cpu) return std::make_unique<FileMemory>(folder, use);
  return std::make_unique<DeviceFileMemory>(device, folder, use);
}

}  // namespace ltrain
