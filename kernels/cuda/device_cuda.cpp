// Streams, events and memory of the CUDA device.
#include "kernels/cuda/device_cuda.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "base/error.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/nvml.h"
#include "kernels/cuda/nvtx_cuda.h"
#include "kernels/cuda/persistent_cuda.h"
#include "kernels/cuda/probe_cuda.h"
#include "kernels/tensor/failed_op.h"
#include "kernels/tensor/host_work.h"
#include "kernels/tensor/last_op.h"
#include "kernels/tensor/out_of_memory.h"
#include "kernels/tensor/timeline.h"

namespace ltrain::cuda {

namespace {

/// "; 12 of its 34 bytes are free", and the processes that have the rest, of the thread's GPU.
std::string rest_text() {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  char bus[32] = "";
  int index = 0;
  cudaGetDevice(&index);
  cudaDeviceGetPCIBusId(bus, sizeof bus, index);
  return fmt::format("GPU {} ({}): {} of its {} bytes are free{}", index, bus, free, total,
                     processes_on(bus));
}

}  // namespace

void cuda_check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  if (result == cudaErrorMemoryAllocation)
    throw OutOfMemory(
        ExitCode::does_not_fit,
        fmt::format("{}: the GPU has no memory {}\n{}", what, MemoryPurpose::text(), rest_text()), 1);
  fail(ExitCode::internal, "{}: {} ({}){}", what, cudaGetErrorString(result), cudaGetErrorName(result),
       failed_op_text());
}

namespace {

/// Event of one record(), on the GPU that its thread used.
struct CudaEvent final : Event::State {
  cudaEvent_t event = nullptr;
  int device = 0;
  CudaEvent() {
    cuda_check(cudaGetDevice(&device), "making an event");
    cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  }
  ~CudaEvent() override { cudaEventDestroy(event); }
  bool happened() override {
    // otherwise a watching thread takes memory of GPU 0
    cuda_check(cudaSetDevice(device), "asking for an event");
    const cudaError_t e = cudaEventQuery(event);
    if (e != cudaErrorNotReady) cuda_check(e, "asking for an event");
    return e == cudaSuccess;
  }
  void block() override { cuda_check(cudaEventSynchronize(event), "waiting for an event"); }
};

/// A timing event.
struct TimingEvent {
  cudaEvent_t event = nullptr;
  explicit TimingEvent(cudaStream_t stream) {
    cuda_check(cudaEventCreate(&event), "making a timing event");
    cuda_check(cudaEventRecord(event, stream), "recording a timing event");
  }
  ~TimingEvent() { cudaEventDestroy(event); }
  TimingEvent(const TimingEvent&) = delete;
  TimingEvent& operator=(const TimingEvent&) = delete;
  bool happened() const {
    const cudaError_t e = cudaEventQuery(event);
    if (e != cudaErrorNotReady) cuda_check(e, "asking for a timing event");
    return e == cudaSuccess;
  }
  double seconds_since(const TimingEvent& earlier) const {
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, earlier.event, event), "reading a timing event");
    return 1e-3 * static_cast<double>(ms);
  }
};

/// Device clock against host clock. A new origin each second: times since it are floats of milliseconds.
struct ClockOrigin {
  TimingEvent event{nullptr};  // our streams and the null stream do not wait for each other
  double at = 0;
  ClockOrigin() {
    cuda_check(cudaEventSynchronize(event.event), "waiting for a timing event");
    at = steady_seconds();
  }
  static std::shared_ptr<const ClockOrigin> recent() {
    thread_local std::shared_ptr<const ClockOrigin> origin;
    if (!origin || steady_seconds() - origin->at > 1) origin = std::make_shared<ClockOrigin>();
    return origin;
  }
};

struct CudaTimestamp final : Timestamp {
  std::shared_ptr<const ClockOrigin> origin = ClockOrigin::recent();
  TimingEvent event;
  explicit CudaTimestamp(cudaStream_t stream) : event(stream) {}
  double seconds() override { return origin->at + event.seconds_since(origin->event); }
};

struct CudaGraph final : Graph {
  cudaStream_t stream = nullptr;
  cudaGraphExec_t ready = nullptr;
  ~CudaGraph() override { cudaGraphExecDestroy(ready); }
  void run() override { cuda_check(cudaGraphLaunch(ready, stream), "launching a graph"); }
};

class CudaStream final : public Stream {
 public:
  explicit CudaStream(std::string name) : Stream(DeviceKind::cuda, std::move(name)) {
    if (const std::string why = no_device_reason(); !why.empty())
      fail(ExitCode::usage, "device: cuda: {}; device: cpu works everywhere", why);
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  }
  ~CudaStream() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  /// Work that uses the stream itself has no CPU form: a CPU kernel would read device memory.
  void launch(std::function<void()>) override {
    fail(ExitCode::internal, "an op without a CUDA kernel on the stream {}", name());
  }
  Event do_record() override {
    auto state = std::make_shared<CudaEvent>();
    cuda_check(cudaEventRecord(state->event, stream_), "recording an event");
    return Event(state);
  }
  void do_wait(const Event& event) override {
    if (!event.state()) return;
    if (const auto* cuda = dynamic_cast<const CudaEvent*>(event.state().get())) {
      if (recording() || !times_waits_)  // captured work is not timed
        return cuda_check(cudaStreamWaitEvent(stream_, cuda->event, 0), "waiting for an event");
      auto begin = std::make_unique<TimingEvent>(stream_);
      cuda_check(cudaStreamWaitEvent(stream_, cuda->event, 0), "waiting for an event");
      pending_waits_.push_back({event.axes, std::move(begin), std::make_unique<TimingEvent>(stream_)});
    } else {
      event.state()->block();  // event of a host worker
    }
  }
  void run_on_host(std::function<void()> work) {
    host_failure_->check();
    auto call = std::make_unique<HostCall>(HostCall{std::move(work), host_failure_});
    const auto run = [](void* given) {
      const std::unique_ptr<HostCall> c(static_cast<HostCall*>(given));
      if (!c->failure->kept()) c->failure->keep(c->work);
    };
    cuda_check(cudaLaunchHostFunc(stream_, run, call.get()), "enqueuing work of the host");
    static_cast<void>(call.release());  // the call owns it now
  }
  void synchronize() override {
    cuda_check(cudaStreamSynchronize(stream_), "waiting for the stream");
    host_failure_->check();
  }
  void copy(void* to, const void* from, int64_t bytes) override {
    cuda_check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_), "copying");
  }

  std::shared_ptr<Timestamp> timestamp() override { return std::make_shared<CudaTimestamp>(stream_); }
  void open_range(std::string_view name) override {
    if (waits_for_each_op() && !recording()) synchronize();  // a failure then belongs to the last op
    LastOp::of_thread().open(name, this->name());
    nvtx_push(name);
  }
  void close_range() override { nvtx_pop(); }
  void note_arguments(const OpArguments& arguments) override { LastOp::of_thread().note(arguments); }
  void enter_layer(std::string_view layer) override {
    if (in_layer_) nvtx_pop();
    in_layer_ = !layer.empty();
    LastOp::of_thread().enter_layer(layer);
    if (in_layer_) nvtx_push(layer);
  }
  /// Waits are timed from the first call on: without calls the timing events would pile up.
  const Waits& waited() override {
    times_waits_ = true;
    for (; !pending_waits_.empty() && pending_waits_.front().end->happened(); pending_waits_.pop_front())
      add_wait(pending_waits_.front().axes,
               pending_waits_.front().end->seconds_since(*pending_waits_.front().begin));
    return Stream::waited();
  }

  std::shared_ptr<Recording> begin_recording() override {
    scratch(), work_counter();  // allocated now: capture forbids allocation
    // Thread-local: other threads of the process may go on to use the GPU.
    cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "recording a graph");
    return std::make_shared<Recording>();
  }
  std::unique_ptr<Graph> end_recording(bool keep) override {
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    if (!keep) {
      if (graph) cudaGraphDestroy(graph);
      return nullptr;
    }
    cuda_check(ended, "recording a graph");
    auto ready = std::make_unique<CudaGraph>();
    ready->stream = stream_;
    const cudaError_t made = cudaGraphInstantiate(&ready->ready, graph, 0);
    cudaGraphDestroy(graph);
    cuda_check(made, "making a graph");
    return ready;
  }

  cudaStream_t stream() const { return stream_; }
  void* scratch() {
    if (!scratch_) {
      const MemoryPurpose purpose("partial sums and matmul workspaces, first of the op " +
                                  LastOp::of_thread().text());
      scratch_ = device_memory(kScratchBytes);
    }
    return scratch_.get();
  }
  unsigned* work_counter() {
    if (!work_counter_) {
      work_counter_ = device_memory(sizeof(unsigned));
      cuda_check(cudaMemsetAsync(work_counter_.get(), 0, sizeof(unsigned), stream_), "filling with zero");
    }
    return static_cast<unsigned*>(work_counter_.get());
  }

 private:
  struct HostCall {
    std::function<void()> work;
    std::shared_ptr<HostFailure> failure;
  };
  cudaStream_t stream_ = nullptr;
  const std::shared_ptr<HostFailure> host_failure_ = std::make_shared<HostFailure>();
  std::shared_ptr<void> scratch_, work_counter_;
  struct PendingWait {
    AxisSet axes;
    std::unique_ptr<TimingEvent> begin, end;
  };
  std::deque<PendingWait> pending_waits_;  // not counted yet
  bool in_layer_ = false, times_waits_ = false;
};

CudaStream& of(Stream& s) {
  LT_CHECK(s.device() == DeviceKind::cuda, "expected a stream of the CUDA device, got {}", s.name());
  return static_cast<CudaStream&>(s);
}

}  // namespace

std::string no_device_reason() {
  if (void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY); driver) {
    ::dlclose(driver);
  } else {
    return "no NVIDIA driver: libcuda.so.1 is not there";
  }
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    return fmt::format(
        "the driver is for CUDA {}.{}, and this build needs one for CUDA {} ({}); a newer driver, or ltrain "
        "built with CUDA 12, would help",
        driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
        CUDART_VERSION >= 13000 ? "580 or newer" : "525 or newer");
  }
  if (counted != cudaSuccess)
    return fmt::format("no GPU that can be used: {} ({})", cudaGetErrorString(counted),
                       cudaGetErrorName(counted));
  if (count == 0) return "the driver shows no GPU (CUDA_VISIBLE_DEVICES hides them?)";
  // A display card may be too old for training: one suitable card is enough at this point.
  int newest = 0;
  for (int i = 0; i < count; ++i) {
    int major = 0;
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i), "asking about a GPU");
    newest = std::max(newest, major);
  }
  if (newest < 8)
    return fmt::format("GPUs are of compute capability {}.x; 8.0 (Ampere) or newer is needed", newest);
  static const Library matmul("libcublasLt", {13, 12});
  if (!matmul.found())
    return fmt::format(
        "libcublasLt is not there ({}); put its folder into LD_LIBRARY_PATH or LTRAIN_CUDA_LIBS",
        matmul.why());
  return "";
}

int driver_version() {
  int version = 0;
  cuda_check(cudaDriverGetVersion(&version), "asking for the driver's version");
  return version;
}

int device_count() {
  int count = 0;
  cuda_check(cudaGetDeviceCount(&count), "counting GPUs");
  return count;
}

std::vector<std::string> device_places() {
  std::vector<std::string> out;
  for (int i = 0; i < device_count(); ++i) {
    char bus[32] = "";
    cuda_check(cudaDeviceGetPCIBusId(bus, sizeof bus, i), "asking where a GPU sits");
    out.push_back(bus);
  }
  return out;
}

std::vector<std::vector<bool>> device_links() { return nvlinks_between(device_places()); }

void use_device(int index) {
  cuda_check(cudaSetDevice(index), fmt::format("using GPU {}", index).c_str());
  check_card(index);
}

int used_device() {
  int index = 0;
  cuda_check(cudaGetDevice(&index), "asking about a GPU");
  return index;
}

DeviceInfo device_info() {
  cudaDeviceProp p;
  cuda_check(cudaGetDeviceProperties(&p, used_device()), "asking about a GPU");
  DeviceInfo info;
  info.name = p.name;
  info.total_bytes = static_cast<int64_t>(p.totalGlobalMem);
  static_assert(sizeof info.identity == sizeof p.uuid);
  std::memcpy(info.identity.data(), &p.uuid, sizeof p.uuid);
  info.capability = 10 * p.major + p.minor;
  return info;
}

int64_t free_device_bytes() {
  size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "asking for free memory of a GPU");
  return static_cast<int64_t>(free);
}

std::shared_ptr<void> device_memory(int64_t bytes) {
  void* p = nullptr;
  if (const cudaError_t e = cudaMalloc(&p, static_cast<size_t>(bytes)); e != cudaSuccess)
    throw OutOfMemory(ExitCode::does_not_fit,
                      fmt::format("the GPU has no memory of {} bytes {}: {}\n{}", bytes,
                                  MemoryPurpose::text(), cudaGetErrorString(e), rest_text()),
                      bytes);
  return {p, [](void* q) { cudaFree(q); }};
}

std::shared_ptr<void> pinned_memory(int64_t bytes) {
  void* p = nullptr;
  if (const cudaError_t e = cudaHostAlloc(&p, static_cast<size_t>(bytes), cudaHostAllocPortable);
      e != cudaSuccess)
    throw OutOfMemory(
        ExitCode::usage,
        fmt::format("{} bytes of pinned host memory {}: {}; what would help: `ulimit -l unlimited`, or more "
                    "memory for the job",
                    bytes, MemoryPurpose::text(), cudaGetErrorString(e)),
        0);
  return {p, [](void* q) { cudaFreeHost(q); }};
}

std::unique_ptr<Stream> make_cuda_stream(std::string name) {
  return std::make_unique<CudaStream>(std::move(name));
}

void* scratch(Stream& s, int64_t bytes) {
  LT_CHECK(bytes <= kScratchBytes, "expected at most {} bytes of a stream's scratch, got {}", kScratchBytes,
           bytes);
  return of(s).scratch();
}

unsigned* work_counter(Stream& s) { return of(s).work_counter(); }

namespace {

/// A number of the card that this thread uses.
int64_t attribute(cudaDeviceAttr which, const char* what) {
  int device = 0, value = 0;
  cuda_check(cudaGetDevice(&device), "asking for the device");
  cuda_check(cudaDeviceGetAttribute(&value, which, device), what);
  return value;
}

}  // namespace

int64_t multiprocessors() {
  static const int64_t n = attribute(cudaDevAttrMultiProcessorCount, "asking for its multiprocessors");
  return n;
}

int64_t most_shared() {
  static const int64_t bytes =
      attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, "asking for its shared memory of a block");
  return bytes;
}

void fill_bytes(Stream& s, void* to, int64_t bytes) {
  cuda_check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), of(s).stream()), "filling with zero");
}

void run_on_host(Stream& s, std::function<void()> work) { of(s).run_on_host(std::move(work)); }

cudaStream_t native(Stream& s) { return of(s).stream(); }

}  // namespace ltrain::cuda
