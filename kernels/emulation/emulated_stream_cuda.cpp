// The emulated device: streams, and its matmul. Only in builds with LTRAIN_CUDA_EMULATED.
//
// Work runs as late as on a GPU at worst: kernels and copies are held until a wait needs them, and then run
// on a thread of the stream. An early read by the host, or a change during a copy, is therefore wrong every
// time. Work of communicators is not held: other ranks wait for it.
#include <omp.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/hopper_cuda.h"
#include "kernels/cuda/kernel_cuda.h"
#include "kernels/cuda/nvml.h"
#include "kernels/cuda/persistent_cuda.h"
#include "kernels/cuda/probe_cuda.h"
#include "kernels/emulation/emulated_memory_cuda.h"
#include "kernels/matmul/cublaslt_rules.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/matmul_fp8.h"
#include "kernels/tensor/failed_op.h"
#include "kernels/tensor/host_work.h"
#include "kernels/tensor/last_op.h"
#include "kernels/tensor/out_of_memory.h"
#include "kernels/tensor/timeline.h"

namespace ltrain::cuda {
namespace {

struct EmulatedEvent;

/// Events of a stream keep its queue alive.
struct Queue {
  struct Entry {
    std::function<void()> work;
    std::shared_ptr<EmulatedEvent> event;  ///< instead of work
  };
  explicit Queue(const std::string& name) : worker(make_worker_stream(name)) {}

  uint64_t hold(Entry e) {
    std::lock_guard lock(mutex);
    held.push_back(std::move(e));
    return first + held.size();
  }
  void release(uint64_t until);

  std::mutex mutex;
  std::deque<Entry> held;
  uint64_t first = 0;  ///< number of released entries
  std::unique_ptr<Stream> worker;
};

struct EmulatedEvent final : Event::State {
  std::shared_ptr<Queue> queue;
  uint64_t place = 0;  ///< number of entries up to its own
  Event released;
  bool happened() override {
    std::lock_guard lock(queue->mutex);
    return queue->first >= place && released.happened();
  }
  void block() override {
    queue->release(place);
    released.state()->block();
  }
};

void Queue::release(uint64_t until) {
  std::lock_guard lock(mutex);
  for (; first < until && !held.empty(); ++first) {
    Entry e = std::move(held.front());
    held.pop_front();
    if (e.event) {
      e.event->released = worker->record();
    } else {
      worker->launch(std::move(e.work));
    }
  }
}

class EmulatedStream;

/// Captured operations, in the order in which they were enqueued.
struct Operations final : Recording {
  struct Operation {
    EmulatedStream* stream;
    std::function<void()> work;    ///< empty: an event, or a wait for one
    bool at_once = false;          ///< work of a communicator
    int records = -1, waits = -1;  ///< number of the event
  };
  std::vector<Operation> list;
  int events = 0;
};

/// A point in captured work; each run has its own event for it.
struct RecordedEvent final : Event::State {
  int number = 0;
  bool happened() override { fail(ExitCode::internal, "the host asks for a point in captured work"); }
  void block() override { happened(); }
};

struct EmulatedGraph final : Graph {
  std::shared_ptr<Operations> operations;
  void run() override;
};

/// LTRAIN_EMULATED_FAULT=swiglu_forward: kernels of that op end like one with an illegal memory access.
bool is_to_fail() {
  static const char* const given = std::getenv("LTRAIN_EMULATED_FAULT");
  return given && LastOp::of_thread().text().starts_with(given + std::string(" "));
}

std::function<void()> on_device(std::function<void()> work) {
  return [work = std::move(work)] {
    const OpenMemory open;
    work();
  };
}

class EmulatedStream final : public Stream {
 public:
  explicit EmulatedStream(std::string name)
      : Stream(DeviceKind::cuda, std::move(name)), queue_(std::make_shared<Queue>(this->name())) {}
  ~EmulatedStream() override {
    try {
      synchronize();
    } catch (...) {  // already reported to a waiter
    }
  }

  void enqueue(std::function<void()> work) {
    if (is_to_fail()) work = [] { fail(ExitCode::internal, "an illegal memory access was encountered"); };
    if (Operations* o = operations()) {
      o->list.push_back({this, std::move(work)});
    } else {
      queue_->hold({on_device(std::move(work)), nullptr});
    }
  }
  void launch(std::function<void()> work) override {
    if (Operations* o = operations()) {
      o->list.push_back({this, std::move(work), true});
    } else {
      queue_->release(queue_->hold({on_device(std::move(work)), {}}));
    }
  }
  /// Held like kernels, with the device's memory closed.
  void run_on_host(std::function<void()> work) {
    LT_CHECK(!recording(), "expected no host work during a capture, got some on stream {}", name());
    host_failure_->check();
    queue_->hold({[work = std::move(work), failure = host_failure_] {
                    if (!failure->kept()) failure->keep(work);
                  },
                  nullptr});
  }
  Event do_record() override {
    if (Operations* o = operations()) {
      auto event = std::make_shared<RecordedEvent>();
      event->number = o->events++;
      o->list.push_back({this, nullptr, false, event->number, -1});
      return Event(event);
    }
    auto event = std::make_shared<EmulatedEvent>();
    event->queue = queue_;
    event->place = queue_->hold({nullptr, event});
    return Event(event);
  }
  void do_wait(const Event& event) override {
    if (!event.state()) return;
    if (Operations* o = operations())
      return o->list.push_back(
          {this, nullptr, false, -1, static_cast<RecordedEvent&>(*event.state()).number});
    LT_CHECK(dynamic_cast<EmulatedEvent*>(event.state().get()),
             "expected an event of a device stream, but stream {} waits for a host's worker", name());
    queue_->hold({[state = event.state()] { state->block(); }, nullptr});
  }
  void synchronize() override {
    LT_CHECK(!recording(), "expected no wait during a capture, got the host's wait for stream {}", name());
    emulated_traffic.waits.fetch_add(1, std::memory_order_relaxed);
    queue_->release(UINT64_MAX);
    try {
      queue_->worker->synchronize();
    } catch (const Error& e) {  // same text as in device_cuda.cpp
      throw Error(e.code(), e.what() + failed_op_text());
    }
    host_failure_->check();
  }
  void copy(void* to, const void* from, int64_t bytes) override {
    enqueue([=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
  }
  /// Held like kernels; launch() would run them.
  std::shared_ptr<Timestamp> timestamp() override {
    struct Late final : Timestamp {
      double at = 0;
      double seconds() override { return at; }
    };
    auto moment = std::make_shared<Late>();
    queue_->hold({[moment] { moment->at = steady_seconds(); }, nullptr});
    return moment;
  }
  void open_range(std::string_view name) override {
    if (waits_for_each_op() && !recording()) synchronize();
    LastOp::of_thread().open(name, this->name());
  }
  void enter_layer(std::string_view layer) override { LastOp::of_thread().enter_layer(layer); }
  void note_arguments(const OpArguments& arguments) override { LastOp::of_thread().note(arguments); }
  std::shared_ptr<Recording> begin_recording() override { return recorded_ = std::make_shared<Operations>(); }
  std::unique_ptr<Graph> end_recording(bool keep) override {
    auto graph = std::make_unique<EmulatedGraph>();
    graph->operations = std::move(recorded_);
    return keep ? std::move(graph) : nullptr;
  }
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
      const OpenMemory open;
      std::memset(work_counter_.get(), 0, sizeof(unsigned));
    }
    return static_cast<unsigned*>(work_counter_.get());
  }

 private:
  Operations* operations() const { return static_cast<Operations*>(recording()); }

  const std::shared_ptr<HostFailure> host_failure_ = std::make_shared<HostFailure>();
  std::shared_ptr<void> scratch_, work_counter_;
  std::shared_ptr<Queue> queue_;
  std::shared_ptr<Operations> recorded_;
};

void EmulatedGraph::run() {
  std::vector<Event> events(static_cast<size_t>(operations->events));
  for (const Operations::Operation& o : operations->list) {
    if (o.records >= 0) {
      events[static_cast<size_t>(o.records)] = o.stream->record();
    } else if (o.waits >= 0) {
      o.stream->wait(events[static_cast<size_t>(o.waits)]);
    } else if (o.at_once) {
      o.stream->launch(o.work);
    } else {
      o.stream->enqueue(o.work);
    }
  }
}

EmulatedStream& of(Stream& s) {
  LT_CHECK(s.device() == DeviceKind::cuda, "expected a stream of the CUDA device, got {}", s.name());
  return static_cast<EmulatedStream&>(s);
}

}  // namespace

void enqueue(Stream& s, std::function<void()> work) { of(s).enqueue(std::move(work)); }
void run_on_host(Stream& s, std::function<void()> work) { of(s).run_on_host(std::move(work)); }

namespace {

/// Parts of a variable's value, separated by commas.
std::vector<std::string> list_in(const char* variable) {
  const char* given = std::getenv(variable);
  std::istringstream in(given ? given : "");
  std::vector<std::string> out;
  for (std::string part; std::getline(in, part, ',');) out.push_back(part);
  return out;
}

}  // namespace

std::string no_device_reason() { return ""; }
int device_count() {
  const std::vector<std::string> places = device_places();
  return places.empty() ? 64 : static_cast<int>(places.size());
}

namespace {

/// Memory of the card; LTRAIN_EMULATED_BYTES makes it small.
int64_t card_bytes() {
  const char* given = std::getenv("LTRAIN_EMULATED_BYTES");
  return given ? std::atoll(given) : int64_t{1} << 40;
}
std::atomic<int64_t> taken{0};

}  // namespace

/// LTRAIN_EMULATED_PLACES=0000:18:00.0,0000:c3:00.0: PCI bus ids of the cards; LTRAIN_EMULATED_LINKS=0-2,1-3:
/// linked pairs of them.
std::vector<std::string> device_places() { return list_in("LTRAIN_EMULATED_PLACES"); }
std::vector<std::vector<bool>> device_links() {
  const size_t n = device_places().size();
  std::vector<std::vector<bool>> linked(n, std::vector<bool>(n));
  for (const std::string& pair : list_in("LTRAIN_EMULATED_LINKS")) {
    const size_t dash = pair.find('-'), a = std::stoul(pair), b = std::stoul(pair.substr(dash + 1));
    linked.at(a).at(b) = linked.at(b).at(a) = true;
  }
  return linked;
}
namespace {

thread_local int used = 0;

/// Memory that processes of others have, by LTRAIN_EMULATED_OTHERS.
int64_t bytes_of_others() {
  const char* given = std::getenv("LTRAIN_EMULATED_OTHERS");
  return given ? std::atoll(given) : 0;
}

}  // namespace

void use_device(int index) {
  check_card(index);
  used = index;
}
int used_device() { return 0; }
DeviceInfo device_info() {
  static std::atomic<int64_t> next{0};  // each rank of a test has its own card
  return {"emulated", card_bytes(), {::getpid(), next++}, 90};
}
int driver_version() {
  const char* given = std::getenv("LTRAIN_EMULATED_DRIVER");
  return given ? std::atoi(given) : 13000;
}
int64_t free_device_bytes() { return card_bytes() - taken - bytes_of_others(); }
std::shared_ptr<void> device_memory(int64_t bytes) {
  if (bytes > free_device_bytes()) {
    const std::vector<std::string> places = device_places();
    throw OutOfMemory(
        ExitCode::does_not_fit,
        fmt::format("the GPU has no memory of {} bytes {}: emulated\nGPU {}: {} of its {} bytes are free{}",
                    bytes, MemoryPurpose::text(), used, free_device_bytes(), card_bytes(),
                    places.empty() ? "" : processes_on(places.at(static_cast<size_t>(used)).c_str())),
        bytes);
  }
  taken += bytes;
  const auto memory = closed_memory(bytes);
  return {memory.get(), [memory, bytes](void*) { taken -= bytes; }};
}
std::shared_ptr<void> pinned_memory(int64_t bytes) {
  return {std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256)), std::free};
}
std::unique_ptr<Stream> make_cuda_stream(std::string name) {
  return std::make_unique<EmulatedStream>(std::move(name));
}
void* scratch(Stream& s, int64_t bytes) {
  LT_CHECK(bytes <= kScratchBytes, "expected at most {} bytes of a stream's scratch, got {}", kScratchBytes,
           bytes);
  return of(s).scratch();
}
unsigned* work_counter(Stream& s) { return of(s).work_counter(); }
int64_t multiprocessors() { return 3; }  // few, so that each has several pieces of a kernel's work
int64_t most_shared() { return kMostShared; }
void fill_bytes(Stream& s, void* to, int64_t bytes) {
  enqueue(s, [=] { std::memset(to, 0, static_cast<size_t>(bytes)); });
}

}  // namespace ltrain::cuda

namespace ltrain {

/// Emulated cuBLASLt: the CPU's matmul, for calls that the library accepts.
void matmul_cuda(Stream& s, Tensor out, Tensor a, Tensor b, const MatmulArgs& args) {
  check_cublaslt(out, a, b, nullptr, nullptr, args);
  cuda::enqueue(s, [=, tf32 = s.tf32] {
    omp_set_num_threads(1);  // threads of the stream's thread
    const auto cpu = make_inline_stream("emulated matmul");
    cpu->tf32 = tf32;
    matmul(*cpu, out, a, b, args);
  });
}

void matmul_fp8_cuda(Stream& s, Tensor out, const Fp8Operand& a, const Fp8Operand& b,
                     const MatmulArgs& args) {
  // f64 is used by tests only; no card has it.
  if (out.dtype != DType::f64)
    check_cublaslt(out, a.codes, b.codes, a.steps.ptr<float>(), b.steps.ptr<float>(), args);
  cuda::enqueue(s, [=] {
    omp_set_num_threads(1);
    MatmulArgs plain = args;
    plain.trans_b = false;  // matmul_fp8 sets it itself
    const auto cpu = make_inline_stream("emulated matmul");
    matmul_fp8(*cpu, out, a, b, plain);
  });
}

}  // namespace ltrain
