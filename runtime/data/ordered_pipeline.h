// A pipeline: one thread reads, several transform, one writes in the order of reading. The number of items in
// flight is bounded.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace ltrain::data {

/// Items on their way: read, not yet transformed; transformed, not yet consumed. Safe on all threads.
template <class Item, class Result>
class OrderedQueue {
 public:
  explicit OrderedQueue(int64_t bound) : bound_(bound) {}

  /// Reads items until the end, an error, or stop().
  template <class Produce>
  void produce_all(Produce& produce) {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || produced_ - consumed_ < bound_; });
        if (stop_) return;
      }
      std::optional<Item> item;
      std::exception_ptr error;
      bool more = false;
      try {
        item = produce();
        more = item.has_value();
      } catch (...) {
        error = std::current_exception();
      }
      std::lock_guard lock(mutex_);
      if (more) {
        todo_.emplace_back(produced_++, std::move(*item));
      } else {
        if (error) done_[produced_++].error = error;  // reported after all items read before it
        end_ = true;
      }
      changed_.notify_all();
      if (end_) return;
    }
  }

  /// Transforms items until none is left.
  template <class Work>
  void transform_all(Work work) {
    for (;;) {
      std::pair<int64_t, Item> item;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || end_ || !todo_.empty(); });
        if (stop_ || todo_.empty()) return;
        item = std::move(todo_.front());
        todo_.pop_front();
      }
      Done d;
      try {
        d.result = work(std::move(item.second));
      } catch (...) {
        d.error = std::current_exception();
      }
      std::lock_guard lock(mutex_);
      done_[item.first] = std::move(d);
      changed_.notify_all();
    }
  }

  /// Hands on the results in the order of the items. Throws the first error in that order.
  template <class Consume>
  void consume_all(Consume& consume) {
    for (;;) {
      Done next;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return done_.contains(consumed_) || (end_ && consumed_ == produced_); });
        if (!done_.contains(consumed_)) return;
        next = std::move(done_.extract(consumed_).mapped());
      }
      if (next.error) std::rethrow_exception(next.error);
      consume(std::move(*next.result));
      std::lock_guard lock(mutex_);
      ++consumed_;
      changed_.notify_all();
    }
  }

  /// Ends the threads that wait.
  void stop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
  }

 private:
  struct Done {
    std::optional<Result> result;
    std::exception_ptr error;
  };

  const int64_t bound_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int64_t, Item>> todo_;
  std::map<int64_t, Done> done_;
  int64_t produced_ = 0, consumed_ = 0;
  bool end_ = false, stop_ = false;
};

/// Runs the pipeline. `produce()` returns the next item, or nothing at the end, on its own thread.
/// `make_worker()` returns for each of `workers` threads its function Item -> Result. `consume(Result&&)`
/// receives the results in the order of the items, on the calling thread. After all threads ended, the first
/// error in that order is rethrown, independent of the number of workers. At most 2 * workers + 2 items are
/// between produce and consume.
template <class Item, class Result, class Produce, class MakeWorker, class Consume>
void run_ordered(int workers, Produce produce, MakeWorker make_worker, Consume consume) {
  OrderedQueue<Item, Result> queue(2 * workers + 2);
  std::vector<std::thread> threads;
  threads.emplace_back([&] { queue.produce_all(produce); });
  for (int w = 0; w < workers; ++w) threads.emplace_back([&] { queue.transform_all(make_worker()); });
  std::exception_ptr error;
  try {
    queue.consume_all(consume);
  } catch (...) {
    error = std::current_exception();
  }
  queue.stop();
  for (std::thread& t : threads) t.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace ltrain::data
