// Threads inside a CPU kernel: OpenMP, because oneDNN brings that pool and two pools would fight for the
// cores.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace ltrain {

/// Calls f(begin, end) for consecutive ranges that cover [0, n), in parallel if n exceeds `grain` items. The
/// ranges depend on the number of threads: the result of f must not depend on them.
template <class F>
void parallel_for(int64_t n, int64_t grain, F&& f) {
  const int64_t threads = std::min<int64_t>(omp_get_max_threads(), (n + grain - 1) / grain);
  if (threads <= 1) {
    if (n > 0) f(int64_t{0}, n);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num(), count = omp_get_num_threads();
    const int64_t begin = n * t / count, end = n * (t + 1) / count;
    if (begin < end) f(begin, end);
  }
}

/// Calls f(i) for i in [0, n), scheduled dynamically, for tasks of unequal cost. `worth`: false runs them on
/// one thread.
template <class F>
void parallel_tasks(int64_t n, F&& f, bool worth = true) {
  if (!worth || n <= 1 || omp_get_max_threads() <= 1) {
    for (int64_t i = 0; i < n; ++i) f(i);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t i = 0; i < n; ++i) f(i);
}

/// Scratch memory of the calling thread, grown on demand and kept. `slot` separates concurrent uses. Its size
/// after the first step is part of the plan's "kernel scratch".
void* thread_scratch(int slot, int64_t bytes);
int64_t scratch_bytes();  ///< sum over all threads

template <class T>
T* scratch(int slot, int64_t count) {
  return static_cast<T*>(thread_scratch(slot, count * static_cast<int64_t>(sizeof(T))));
}

}  // namespace ltrain
