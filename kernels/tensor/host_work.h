// Host work in the order of a GPU's stream.
#pragma once
#include <exception>
#include <functional>
#include <mutex>

#include "kernels/tensor/stream.h"

namespace ltrain {

/// First exception of host work, kept on a thread that cannot throw it.
class HostFailure {
 public:
  /// Runs `work` and keeps its exception.
  void keep(const std::function<void()>& work) noexcept {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
  bool kept() const {
    const std::lock_guard lock(mutex_);
    return static_cast<bool>(error_);
  }
  /// Throws the kept exception, in each call.
  void check() const {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
};

namespace cuda {

/// Runs `work` on a host thread, after everything enqueued on the stream before and before everything
/// enqueued later. `work` may not use a device. After an exception no further host work runs; synchronize()
/// and the next call throw it.
void run_on_host(Stream& s, std::function<void()> work);

}  // namespace cuda
}  // namespace ltrain
