#include "kernels/storage/offload.h"

#include <cstring>

#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/timeline.h"

namespace ltrain {
namespace {

class HostMemory final : public OffloadMemory {
 public:
  HostMemory(DeviceKind device, const OffloadUse& use)
      : device_(device), stream_(make_side_stream(device, use.key)) {}
  ~HostMemory() override { stream_.reset(); }
  void reserve(int64_t bytes) override {
    if (bytes == 0) return;
    memory_ = host_memory(device_, bytes);
    std::memset(memory_.get(), 0, static_cast<size_t>(bytes));
  }
  void* at(int64_t offset) override { return static_cast<char*>(memory_.get()) + offset; }
  void fetch(const Tensor& t, int64_t offset) override {
    const OpRange range(*stream_, "offload_fetch");
    stream_->copy(t.data, at(offset), t.bytes());
  }
  void store(const Tensor& t, int64_t offset) override {
    const OpRange range(*stream_, "offload_store");
    stream_->copy(at(offset), t.data, t.bytes());
  }
  Stream& stream() override { return *stream_; }

 private:
  DeviceKind device_;
  std::shared_ptr<void> memory_;
  std::unique_ptr<Stream> stream_;
};

class MetaOffloadMemory final : public OffloadMemory {
 public:
  MetaOffloadMemory(MetaTrace& trace, const std::string& name, bool file)
      : file_(file), stream_(make_meta_stream(name, trace)) {}
  void reserve(int64_t) override {}
  void* at(int64_t) override { return nullptr; }
  void fetch(const Tensor& t, int64_t) override {
    add(op_cost(file_ ? kFileFetch : kOffloadFetch, OpClass::offload, 0, {t}, {}));
  }
  void store(const Tensor& t, int64_t) override {
    add(op_cost(file_ ? kFileStore : kOffloadStore, OpClass::offload, 0, {}, {t}));
  }
  Stream& stream() override { return *stream_; }

 private:
  void add(const OpCost& cost) { stream_->meta()->add(*stream_, cost); }
  bool file_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace

std::unique_ptr<OffloadMemory> make_host_memory(DeviceKind device, const OffloadUse& use) {
  return std::make_unique<HostMemory>(device, use);
}
std::unique_ptr<OffloadMemory> make_meta_offload_memory(MetaTrace& trace, const std::string& name,
                                                        bool file) {
  return std::make_unique<MetaOffloadMemory>(trace, name, file);
}

}  // namespace ltrain
