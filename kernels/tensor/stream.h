// Streams and events: in-order queues of work on one device. Each rank has three: compute, comm and copy.
//
// On the CPU `compute` is inline (work runs on the calling thread, spread over threads inside the kernels)
// and `comm` and `copy` are first-in-first-out workers, so overlap has the code and the races that it has on
// a GPU. On `meta` a stream is a timeline: work advances its clock by what the cost model says.
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
class OpArguments;
struct Recording;
class Stream;

/// A point in a stream. Copies share the point. A default-constructed event has happened.
class Event {
 public:
  struct State {
    virtual ~State() = default;
    virtual bool happened() = 0;  ///< never blocks
    virtual void block() = 0;  ///< the caller, until it has happened; rethrows what the work before it threw
    const Stream* stream = nullptr;
    std::shared_ptr<Recording> recording;  ///< that it is part of, where it is a point in captured work
  };
  Event() = default;
  explicit Event(std::shared_ptr<State> s) : state_(std::move(s)) {}
  const std::shared_ptr<State>& state() const { return state_; }
  bool happened() const { return !state_ || state_->happened(); }
  double meta_time = 0;  ///< on meta: seconds on the timeline
  AxisSet axes;          ///< of the group whose collective came last before it; none: of no collective

 private:
  std::shared_ptr<State> state_;
};

/// When all work was done that a stream had been given until then.
class Timestamp {
 public:
  virtual ~Timestamp() = default;
  virtual double seconds() = 0;  ///< of the steady clock; after the stream was synchronized
};

/// What Stream::capture has seen so far.
struct Recording {
  virtual ~Recording() = default;
  std::vector<Stream*> streams;  ///< the first one begins
  std::vector<std::function<void()>>
      after;  ///< called on the host each time the work was given to its streams
  bool has(const Stream* s) const;
};

/// Work that was recorded once and is run as a whole, again and again: the same kernels and collectives on
/// the same memory, with the arguments that they were recorded with.
class Graph {
 public:
  virtual ~Graph() = default;
  /// After everything enqueued before on any of its streams, and before everything enqueued later.
  void replay();

 protected:
  virtual void run() = 0;  ///< on the first of its streams

 private:
  friend class Stream;
  std::shared_ptr<Recording> recording_;
};

/// Who computes attention on a GPU, where a call can go to both: the kernels here, or cuDNN where it is
/// (ops/attention_cudnn.h). `cudnn` fails where it cannot.
enum class AttentionBackend : uint8_t { own, automatic, cudnn };

class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  DeviceKind device() const { return device_; }
  const std::string& name() const { return name_; }
  MetaTrace* meta() const { return meta_; }  ///< null unless device() is meta

  /// Runs `work` after everything enqueued before. What it throws is rethrown by the next wait or
  /// synchronize.
  virtual void launch(std::function<void()> work) = 0;
  /// An event that happens when all work enqueued so far is done.
  Event record();
  /// Work enqueued later starts after `event`.
  void wait(const Event& event);
  /// Blocks the caller until the stream is empty.
  virtual void synchronize() = 0;
  /// Bytes from one memory to another, whichever device they are on, after everything enqueued before. Host
  /// memory may be touched until synchronize() returns.
  virtual void copy(void* to, const void* from, int64_t bytes);

  /// Records what `work` enqueues on this stream and on `others` instead of running it. What goes to further
  /// streams, and what the host waits for, cannot be recorded. Only on the CUDA device.
  std::unique_ptr<Graph> capture(const std::function<void()>& work, const std::vector<Stream*>& others = {});
  Recording* recording() const { return recording_.get(); }  ///< that this stream is part of now; else null

  // ---- for timelines (timeline.h) and a GPU's tools ----
  virtual std::shared_ptr<Timestamp> timestamp();
  virtual void open_range(std::string_view name) {}
  virtual void close_range() {}
  /// Of the op whose range is open, for the message should it fail.
  virtual void note_arguments(const OpArguments& arguments) {}
  virtual void enter_layer(std::string_view layer) {}  ///< until the next one; empty: none

  AttentionBackend attention_backend = AttentionBackend::own;
  bool tf32 = false;  ///< products of f32 round their operands to 10 bits after the point
  double clock = 0;   ///< meta: the end of the last work on this timeline, seconds
  AxisSet last_axes;  ///< of the group whose collective was enqueued last (Communicator sets it)
  /// Seconds that work of this stream waited for other streams so far, by the axes of the group whose
  /// collective it waited for: exposed communication; under no axes what was no collective (offloading). Of
  /// streams that compute; on a GPU as far as is known without blocking.
  struct ByAxes {
    bool operator()(AxisSet a, AxisSet b) const { return a.bits < b.bits; }
  };
  using Waits = std::map<AxisSet, double, ByAxes>;
  virtual const Waits& waited() { return waits_; }

 protected:
  virtual Event do_record() = 0;
  virtual void do_wait(const Event& event) = 0;
  virtual std::shared_ptr<Recording> begin_recording();
  /// Of what begin_recording() gave. Null where the work has thrown: nothing is kept.
  virtual std::unique_ptr<Graph> end_recording(bool keep) { return nullptr; }
  Stream(DeviceKind device, std::string name, MetaTrace* meta = nullptr)
      : device_(device), name_(std::move(name)), meta_(meta) {}
  void add_wait(AxisSet axes, double seconds) { waits_[axes] += seconds; }

 private:
  DeviceKind device_;
  std::string name_;
  MetaTrace* meta_;
  std::shared_ptr<Recording> recording_;
  Waits waits_;
};

std::unique_ptr<Stream> make_inline_stream(std::string name);  ///< CPU, runs in launch()
std::unique_ptr<Stream> make_worker_stream(std::string name);  ///< CPU, FIFO thread

}  // namespace ltrain
