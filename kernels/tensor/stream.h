// Streams and events: in-order queues of work on one device. Each rank has three: compute, comm and copy.
//
// On the CPU `compute` is inline: work runs on the calling thread, and kernels use several threads. `comm`
// and `copy` are first-in-first-out worker threads, so that overlap has the same code and the same races as
// on a GPU. On `meta` a stream is a timeline: work advances its clock by the cost model's time.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor/placement.h"
#include "kernels/tensor/tensor.h"

namespace ltrain {

class MetaTrace;
class MicroBatchOverlap;
class OpArguments;
struct Recording;
class Stream;

/// A point in a stream. Copies share the point. A default-constructed event has already happened.
class Event {
 public:
  struct State {
    virtual ~State() = default;
    virtual bool happened() = 0;  ///< never blocks
    /// blocks the caller until it has happened; rethrows an exception of earlier work
    virtual void block() = 0;
    const Stream* stream = nullptr;
    std::shared_ptr<Recording> recording;  ///< recording that contains the event, if captured
  };
  Event() = default;
  explicit Event(std::shared_ptr<State> s) : state_(std::move(s)) {}
  const std::shared_ptr<State>& state() const { return state_; }
  bool happened() const { return !state_ || state_->happened(); }
  double meta_time = 0;  ///< on meta: seconds on the timeline
  AxisSet axes;  ///< axes of the last collective's group before the event; empty if it was no collective

 private:
  std::shared_ptr<State> state_;
};

/// Time at which all work of a stream so far was done.
class Timestamp {
 public:
  virtual ~Timestamp() = default;
  virtual double seconds() = 0;  ///< steady clock; valid after the stream was synchronized
};

/// Progress of Stream::capture.
struct Recording {
  virtual ~Recording() = default;
  std::vector<Stream*> streams;  ///< the first stream begins
  std::vector<std::function<void()>>
      after;  ///< called on the host each time the work is enqueued on its streams
  bool has(const Stream* s) const;
};

/// Work that was captured once and runs as one unit, any number of times: the same kernels and collectives on
/// the same memory, with the captured arguments.
class Graph {
 public:
  virtual ~Graph() = default;
  /// Runs after everything enqueued before on any of its streams, and before everything enqueued later.
  void replay();

 protected:
  virtual void run() = 0;  ///< on the first of its streams

 private:
  friend class Stream;
  std::shared_ptr<Recording> recording_;
};

/// Attention backend on a GPU, for calls that both support: the native kernels, or cuDNN if available
/// (kernels/attention/attention_cudnn.h). `cudnn` fails if cuDNN cannot run a call.
enum class AttentionBackend : uint8_t { own, automatic, cudnn };

class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  DeviceKind device() const { return device_; }
  const std::string& name() const { return name_; }
  MetaTrace* meta() const { return meta_; }  ///< null unless device() is meta

  /// Runs `work` after everything enqueued before. The next wait or synchronize rethrows its exception.
  virtual void launch(std::function<void()> work) = 0;
  /// Returns an event that happens when all work enqueued so far is done.
  Event record();
  /// Makes work enqueued later start after `event`.
  void wait(const Event& event);
  /// Blocks the caller until the stream is empty.
  virtual void synchronize() = 0;
  /// Copies bytes between memories of any devices, after everything enqueued before. Host memory may be
  /// accessed until synchronize() returns.
  virtual void copy(void* to, const void* from, int64_t bytes);

  /// Captures the work that `work` enqueues on this stream and on `others` instead of running it. Work on
  /// further streams and host waits cannot be captured. CUDA only.
  std::unique_ptr<Graph> capture(const std::function<void()>& work, const std::vector<Stream*>& others = {});
  /// recording in progress on this stream, or null
  Recording* recording() const { return recording_.get(); }

  // ---- for timelines (timeline.h) and GPU profilers ----
  virtual std::shared_ptr<Timestamp> timestamp();
  virtual void open_range(std::string_view name) {}
  virtual void close_range() {}
  /// Arguments of the op whose range is open, for a failure message.
  virtual void note_arguments(const OpArguments& arguments) {}
  virtual void enter_layer(std::string_view layer) {}  ///< layer until the next call; empty: none

  AttentionBackend attention_backend = AttentionBackend::own;
  bool tf32 = false;  ///< f32 matmuls round their operands to 10 mantissa bits
  /// Run of two micro-batches that alternate on this stream (micro_batch_overlap.h); null: one alone.
  MicroBatchOverlap* overlap = nullptr;
  double clock = 0;   ///< meta: end of the last work on this timeline, in seconds
  AxisSet last_axes;  ///< axes of the last enqueued collective's group (set by Communicator)
  /// Exposed communication: seconds that this stream has waited for other streams, by the axes of the
  /// collective's group. Waits for other work (offloading) have no axes. For compute streams; on a GPU only
  /// the waits known without blocking.
  struct ByAxes {
    bool operator()(AxisSet a, AxisSet b) const { return a.bits < b.bits; }
  };
  using Waits = std::map<AxisSet, double, ByAxes>;
  virtual const Waits& waited() { return waits_; }
  void add_wait(AxisSet axes, double seconds) { waits_[axes] += seconds; }

 protected:
  virtual Event do_record() = 0;
  virtual void do_wait(const Event& event) = 0;
  virtual std::shared_ptr<Recording> begin_recording();
  /// Ends begin_recording(). Returns null if the work has thrown (`keep` false).
  virtual std::unique_ptr<Graph> end_recording(bool keep) { return nullptr; }
  Stream(DeviceKind device, std::string name, MetaTrace* meta = nullptr)
      : device_(device), name_(std::move(name)), meta_(meta) {}

 private:
  DeviceKind device_;
  std::string name_;
  MetaTrace* meta_;
  std::shared_ptr<Recording> recording_;
  Waits waits_;
};

std::unique_ptr<Stream> make_inline_stream(std::string name);  ///< CPU; work runs in launch()
std::unique_ptr<Stream> make_worker_stream(std::string name);  ///< CPU; first-in-first-out thread

}  // namespace ltrain
