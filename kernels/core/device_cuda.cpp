// Streams, events and memory of the CUDA device.
#include "kernels/core/device_cuda.h"

#include "kernels/core/error.h"

namespace ltrain::cuda {

void cuda_check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  fail(ExitCode::internal, "{}: {} ({})", what, cudaGetErrorString(result), cudaGetErrorName(result));
}

namespace {

/// Events are made once and used again: making one is a call to the driver.
struct CudaEvent final : Event::State {
  cudaEvent_t event = nullptr;
  CudaEvent() { cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event"); }
  ~CudaEvent() override { cudaEventDestroy(event); }
  bool happened() override {
    const cudaError_t e = cudaEventQuery(event);
    if (e != cudaErrorNotReady) cuda_check(e, "asking for an event");
    return e == cudaSuccess;
  }
  void block() override { cuda_check(cudaEventSynchronize(event), "waiting for an event"); }
};

class CudaStream final : public Stream {
 public:
  explicit CudaStream(std::string name) : Stream(DeviceKind::cuda, std::move(name)) {
    if (const std::string why = no_device_reason(); !why.empty())
      fail(ExitCode::usage, "device: cuda: {}; device: cpu works everywhere", why);
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    scratch_ = device_memory(kScratchBytes);
  }
  ~CudaStream() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  /// For work that talks to the stream itself. A kernel of the CPU would read device memory.
  void launch(std::function<void()>) override {
    fail(ExitCode::internal, "an op without a CUDA kernel on the stream {}", name());
  }
  Event record() override {
    auto state = std::make_shared<CudaEvent>();
    cuda_check(cudaEventRecord(state->event, stream_), "recording an event");
    return Event(state);
  }
  void wait(const Event& event) override {
    if (!event.state()) return;
    if (const auto* cuda = dynamic_cast<const CudaEvent*>(event.state().get())) {
      cuda_check(cudaStreamWaitEvent(stream_, cuda->event, 0), "waiting for an event");
    } else {
      event.state()->block();  // of a worker on the host
    }
  }
  void synchronize() override { cuda_check(cudaStreamSynchronize(stream_), "waiting for the stream"); }
  void copy(void* to, const void* from, int64_t bytes) override {
    cuda_check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_), "copying");
  }

  cudaStream_t stream() const { return stream_; }
  void* scratch() const { return scratch_.get(); }

 private:
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<void> scratch_;
};

CudaStream& of(Stream& s) {
  LT_CHECK(s.device() == DeviceKind::cuda, "stream {} is not one of the CUDA device", s.name());
  return static_cast<CudaStream&>(s);
}

}  // namespace

std::string no_device_reason() {
  int count = 0;
  // Without a driver this is an error, not a crash: the runtime is linked in, the driver is looked for.
  if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess)
    return fmt::format("no CUDA device: {}", cudaGetErrorString(e));
  return count > 0 ? "" : "no CUDA device: the driver sees none";
}

std::shared_ptr<void> device_memory(int64_t bytes) {
  void* p = nullptr;
  if (const cudaError_t e = cudaMalloc(&p, static_cast<size_t>(bytes)); e != cudaSuccess) {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    fail(ExitCode::internal, "{} bytes of device memory: {}; {} of {} are free", bytes, cudaGetErrorString(e),
         free, total);
  }
  return {p, [](void* q) { cudaFree(q); }};
}

std::unique_ptr<Stream> make_cuda_stream(std::string name) {
  return std::make_unique<CudaStream>(std::move(name));
}

void* scratch(Stream& s, int64_t bytes) {
  LT_CHECK(bytes <= kScratchBytes, "{} bytes of a stream's scratch, which has {}", bytes, kScratchBytes);
  return of(s).scratch();
}

void fill_bytes(Stream& s, void* to, int64_t bytes) {
  cuda_check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), of(s).stream()), "filling with zero");
}

cudaStream_t native(Stream& s) { return of(s).stream(); }

}  // namespace ltrain::cuda
