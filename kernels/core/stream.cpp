#include "kernels/core/stream.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "kernels/core/kernel.h"
#include "kernels/core/meta.h"
#include "kernels/core/timeline.h"

namespace ltrain {

namespace {

/// Of a worker's queue.
struct HostEvent final : Event::State {
  std::mutex mutex;
  std::condition_variable done_cv;
  bool done = false;
  std::exception_ptr error;  // of the work before the event, for whoever waits

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

/// Of a stream whose work runs on the host.
struct HostMoment final : Moment {
  double at = 0;
  double seconds() override { return at; }
};

class InlineStream final : public Stream {
 public:
  explicit InlineStream(std::string name) : Stream(DeviceKind::cpu, std::move(name)) {}
  void launch(std::function<void()> work) override { work(); }
  Event record() override { return Event(); }
  void wait(const Event& event) override {
    if (!event.state()) return;
    const double start = steady_seconds();
    event.state()->block();
    waited_ += steady_seconds() - start;
  }
  void synchronize() override {}
  double waited() override { return waited_; }

 private:
  double waited_ = 0;
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

  Event record() override {
    auto state = std::make_shared<HostEvent>();
    // Not through launch(): an event must be finished even after a failure, so that nobody waits for ever.
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(nullptr);
      events_.push_back(state);
      ++pending_;
    }
    changed_.notify_all();
    return Event(state);
  }

  void wait(const Event& event) override {
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
      if (queue_.empty()) return;  // stopping, and drained
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
  std::deque<std::function<void()>> queue_;  // an empty function stands for the next entry of events_
  std::deque<std::shared_ptr<HostEvent>> events_;
  int64_t pending_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: starts when everything above is ready
};

class MetaStream final : public Stream {
 public:
  MetaStream(std::string name, MetaTrace& trace) : Stream(DeviceKind::meta, std::move(name), &trace) {}
  void launch(std::function<void()>) override { LT_CHECK(false, "work launched on a meta stream"); }
  Event record() override {
    Event e;
    e.meta_time = clock;
    return e;
  }
  void wait(const Event& event) override {
    if (event.meta_time > clock) {
      meta()->waited(*this, event.meta_time - clock);
      clock = event.meta_time;
    }
  }
  void synchronize() override {}
};

}  // namespace

void Stream::copy(void* to, const void* from, int64_t bytes) {
  if (meta()) return;
  launch([=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
}

std::shared_ptr<Moment> Stream::moment() {
  auto moment = std::make_shared<HostMoment>();
  launch([moment] { moment->at = steady_seconds(); });
  return moment;
}

std::unique_ptr<Graph> Stream::capture(const std::function<void()>& work) {
  const TimelinePause pause;
  return do_capture(work);
}

std::unique_ptr<Graph> Stream::do_capture(const std::function<void()>&) {
  fail(ExitCode::internal, "work recorded on the stream {}, which runs all of it at once", name());
}

std::unique_ptr<Stream> make_inline_stream(std::string name) {
  return std::make_unique<InlineStream>(std::move(name));
}
std::unique_ptr<Stream> make_worker_stream(std::string name) {
  return std::make_unique<WorkerStream>(std::move(name));
}
std::unique_ptr<Stream> make_meta_stream(std::string name, MetaTrace& trace) {
  return std::make_unique<MetaStream>(std::move(name), trace);
}

}  // namespace ltrain
