#include "kernels/storage/offload.h"

#include <omp.h>

#include <cstring>

#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/host_work.h"
#include "kernels/tensor/timeline.h"

namespace ltrain {

void OffloadMemory::run_on_host(std::function<void(Stream&)>) { host_stream(); }
Stream& OffloadMemory::host_stream() {
  LT_CHECK(false, "expected host memory of a GPU for work of the host's cores, got the memory of {}",
           stream().name());
}

namespace {

std::string host_stream_name(const std::string& memory) { return memory + ", host"; }

class HostMemory final : public OffloadMemory {
 public:
  HostMemory(DeviceKind device, const OffloadUse& use)
      : device_(device), stream_(make_side_stream(device, use.key)) {}
  ~HostMemory() override { host_.reset(), stream_.reset(); }
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
  void synchronize() override {
    if (host_) host_->synchronize();
    stream_->synchronize();
  }
  void run_on_host(std::function<void(Stream&)> work) override {
    const OpRange range(host_stream(), kHostUpdate);
    cuda::run_on_host(*host_, [this, work = std::move(work), threads = omp_get_max_threads()] {
      omp_set_num_threads(threads);
      work(*cores_);
    });
  }
  Stream& host_stream() override {
    if (!host_) host_ = make_side_stream(device_, host_stream_name(stream_->name()));
    return *host_;
  }

 private:
  DeviceKind device_;
  std::shared_ptr<void> memory_;
  std::unique_ptr<Stream> stream_, host_;
  const std::unique_ptr<Stream> cores_ = make_inline_stream("cores of the host");  // on host_'s thread only
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
  /// Runs `work` in a trace of its own, whose ops become one.
  void run_on_host(std::function<void(Stream&)> work) override {
    MetaTrace& trace = *stream_->meta();
    MetaTrace kernels;
    for (int i = 0; i < kAxisCount; ++i)
      kernels.set_axis_size(static_cast<Axis>(i), trace.axis_size(static_cast<Axis>(i)));
    kernels.set_layer(trace.layer());
    work(*make_meta_stream(host_stream().name(), kernels));
    OpCost all;
    all.name = kHostUpdate, all.cls = OpClass::offload;
    for (const TraceEntry& e : kernels.entries()) all.flops += e.flops, all.bytes += e.bytes;
    trace.add(*host_, all);
  }
  Stream& host_stream() override {
    if (!host_) host_ = make_meta_stream(host_stream_name(stream_->name()), *stream_->meta());
    return *host_;
  }

 private:
  void add(const OpCost& cost) { stream_->meta()->add(*stream_, cost); }
  bool file_;
  std::unique_ptr<Stream> stream_, host_;
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
