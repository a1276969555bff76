#include "kernels/tensor/stream.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "base/progress.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/timeline.h"

namespace ltrain {

namespace {

/// Event of a worker's queue.
struct HostEvent final : Event::State {
  std::mutex mutex;
  std::condition_variable done_cv;
  bool done = false;
  std::exception_ptr error;  // exception of earlier work, for waiters

  void finish(std::exception_ptr e) {
    std::lock_guard lock(mutex);
    done = true;
    error = e;
    done_cv.notify_all();
  }
  bool happened() override {
    std::lock_guard lock(mutex);
    return done;
  }
  void block() override {
    std::unique_lock lock(mutex);
    done_cv.wait(lock, [&] { return done; });
    if (error) std::rethrow_exception(error);
  }
};

/// Timestamp of a stream with host work.
struct HostTimestamp final : Timestamp {
  double at = 0;
  double seconds() override { return at; }
};

class InlineStream final : public Stream {
 public:
  explicit InlineStream(std::string name) : Stream(DeviceKind::cpu, std::move(name)) {}
  void launch(std::function<void()> work) override { work(); }
  Event do_record() override { return Event(); }
  void do_wait(const Event& event) override {
    if (!event.state()) return;
    const double start = steady_seconds();
    event.state()->block();
    add_wait(event.axes, steady_seconds() - start);
  }
  void synchronize() override {}
};

class WorkerStream final : public Stream {
 public:
  explicit WorkerStream(std::string name)
      : Stream(DeviceKind::cpu, std::move(name)), thread_([this] { loop(); }) {}

  ~WorkerStream() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void launch(std::function<void()> work) override {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
      ++pending_;
    }
    changed_.notify_all();
  }

  Event do_record() override {
    auto state = std::make_shared<HostEvent>();
    // Not through launch(): an event must finish even after a failure, so that no waiter blocks forever.
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(nullptr);
      events_.push_back(state);
      ++pending_;
    }
    changed_.notify_all();
    return Event(state);
  }

  void do_wait(const Event& event) override {
    if (!event.state()) return;
    launch([state = event.state()] { state->block(); });
  }

  void synchronize() override {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return pending_ == 0; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;  // stopping, queue drained
      std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      std::shared_ptr<HostEvent> event;
      if (!work) {
        event = std::move(events_.front());
        events_.pop_front();
      }
      const std::exception_ptr earlier = error_;
      lock.unlock();
      std::exception_ptr now;
      if (event) {
        event->finish(earlier);
      } else if (!earlier) {  // after a failure the rest of the queue is dropped
        try {
          work();
          note_progress();
        } catch (...) {
          now = std::current_exception();
        }
      }
      work = nullptr;
      lock.lock();
      if (now && !error_) error_ = now;
      if (--pending_ == 0) idle_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::deque<std::function<void()>> queue_;  // an empty function marks the next entry of events_
  std::deque<std::shared_ptr<HostEvent>> events_;
  int64_t pending_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: starts after all other members are ready
};

}  // namespace

void Stream::copy(void* to, const void* from, int64_t bytes) {
  if (meta()) return;
  launch([=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
}

std::shared_ptr<Timestamp> Stream::timestamp() {
  auto moment = std::make_shared<HostTimestamp>();
  launch([moment] { moment->at = steady_seconds(); });
  return moment;
}

bool Recording::has(const Stream* s) const {
  return std::find(streams.begin(), streams.end(), s) != streams.end();
}

Event Stream::record() {
  Event e = do_record();
  e.axes = last_axes;
  if (e.state()) e.state()->stream = this, e.state()->recording = recording_;
  return e;
}

void Stream::wait(const Event& event) {
  const Event::State* state = event.state().get();
  const std::shared_ptr<Recording> of = state ? state->recording : nullptr;
  if (of == recording_) return do_wait(event);
  // Streams of captured work wait for each other before and after it. Waits across its border need no event:
  // earlier work is already waited for, and later waits see the end of the captured work.
  if (of)
    LT_CHECK(of->has(this), "expected stream {} to be part of the captured work that it waits for", name());
  if (state && recording_)
    LT_CHECK(recording_->has(state->stream),
             "expected captured work to wait only for its own streams, got stream {}", state->stream->name());
}

std::unique_ptr<Graph> Stream::capture(const std::function<void()>& work,
                                       const std::vector<Stream*>& others) {
  const TimelinePause pause;
  LT_CHECK(!recording_, "expected no capture in progress on stream {}, got a nested one", name());
  const std::shared_ptr<Recording> recording = begin_recording();
  recording->streams = {this};
  recording->streams.insert(recording->streams.end(), others.begin(), others.end());
  const auto set = [&](const std::shared_ptr<Recording>& r) {
    for (Stream* s : recording->streams) s->recording_ = r;
  };
  set(recording);
  try {
    for (Stream* s : others) s->wait(record());
    work();
    for (Stream* s : others) wait(s->record());
  } catch (...) {
    set(nullptr);
    end_recording(false);
    throw;
  }
  set(nullptr);
  std::unique_ptr<Graph> graph = end_recording(true);
  graph->recording_ = recording;
  return graph;
}

void Graph::replay() {
  Stream& first = *recording_->streams[0];
  const std::vector<Stream*> others(recording_->streams.begin() + 1, recording_->streams.end());
  for (Stream* s : others) first.wait(s->record());
  run();
  for (Stream* s : others) s->wait(first.record());
  for (const auto& f : recording_->after) f();
}

std::shared_ptr<Recording> Stream::begin_recording() {
  fail(ExitCode::internal, "work recorded on the stream {}, which runs all of it at once", name());
}

std::unique_ptr<Stream> make_inline_stream(std::string name) {
  return std::make_unique<InlineStream>(std::move(name));
}
std::unique_ptr<Stream> make_worker_stream(std::string name) {
  return std::make_unique<WorkerStream>(std::move(name));
}

}  // namespace ltrain
