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

/// Runs the pipeline. `produce()` returns the next item, or nothing at the end, on its own thread.
/// `make_worker()` returns for each of `workers` threads its function Item -> Result. `consume(Result&&)`
/// receives the results in the order of the items, on the calling thread. After all threads ended, the first
/// error in that order is rethrown, independent of the number of workers. At most 2 * workers + 2 items are
/// between produce and consume.
template <class Item, class Result, class Produce, class MakeWorker, class Consume>
void run_ordered(int workers, Produce produce, MakeWorker make_worker, Consume consume) {
  struct Done {
    std::optional<Result> result;
    std::exception_ptr error;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<int64_t, Item>> todo;
  std::map<int64_t, Done> done;
  int64_t produced = 0, consumed = 0;
  bool end = false, stop = false;
  const int64_t bound = 2 * workers + 2;

  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    for (;;) {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stop || produced - consumed < bound; });
        if (stop) return;
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
      std::lock_guard lock(mutex);
      if (more) {
        todo.emplace_back(produced++, std::move(*item));
      } else {
        if (error) done[produced++].error = error;  // reported after all items read before it
        end = true;
      }
      changed.notify_all();
      if (end) return;
    }
  });
  for (int w = 0; w < workers; ++w) {
    threads.emplace_back([&] {
      auto work = make_worker();
      for (;;) {
        std::pair<int64_t, Item> item;
        {
          std::unique_lock lock(mutex);
          changed.wait(lock, [&] { return stop || end || !todo.empty(); });
          if (stop || todo.empty()) return;
          item = std::move(todo.front());
          todo.pop_front();
        }
        Done d;
        try {
          d.result = work(std::move(item.second));
        } catch (...) {
          d.error = std::current_exception();
        }
        std::lock_guard lock(mutex);
        done[item.first] = std::move(d);
        changed.notify_all();
      }
    });
  }

  std::exception_ptr error;
  try {
    for (;;) {
      Done next;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return done.contains(consumed) || (end && consumed == produced); });
        if (!done.contains(consumed)) break;
        next = std::move(done.extract(consumed).mapped());
      }
      if (next.error) std::rethrow_exception(next.error);
      consume(std::move(*next.result));
      std::lock_guard lock(mutex);
      ++consumed;
      changed.notify_all();
    }
  } catch (...) {
    error = std::current_exception();
  }
  {
    std::lock_guard lock(mutex);
    stop = true;
  }
  changed.notify_all();
  for (std::thread& t : threads) t.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace ltrain::data
