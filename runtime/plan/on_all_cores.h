// Parallel loops over indices, with one thread for each core that the process may use.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <future>
#include <set>
#include <type_traits>
#include <vector>

#include "runtime/launch/cgroup.h"

namespace ltrain {

/// Calls work(0) to work(n - 1), each once. Returns when all are done, and rethrows an exception of one of
/// them.
template <class Work>
void on_all_cores(size_t n, const Work& work) {
  std::atomic<size_t> next = 0;
  const auto run = [&] {
    for (size_t i = next++; i < n; i = next++) work(i);
  };
  std::vector<std::future<void>> workers;
  const size_t most = std::min(n, static_cast<size_t>(usable_cores()));
  for (size_t i = 1; i < most; ++i) workers.push_back(std::async(std::launch::async, run));
  run();
  for (auto& w : workers) w.get();
}

/// Like on_all_cores, for indices of which those with one key share work done by the first of them. One index
/// of each key runs before the others, so that threads do not wait for each other.
template <class KeyOf, class Work>
void on_all_cores_by_key(size_t n, const KeyOf& key_of, const Work& work) {
  std::set<std::decay_t<decltype(key_of(size_t{}))>> keys;
  std::vector<size_t> firsts, others;
  for (size_t i = 0; i < n; ++i) (keys.insert(key_of(i)).second ? firsts : others).push_back(i);
  for (const std::vector<size_t>* which : {&firsts, &others})
    on_all_cores(which->size(), [&](size_t i) { work((*which)[i]); });
}

}  // namespace ltrain
