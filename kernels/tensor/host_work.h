// Work of the host in the order of a GPU's stream.
#pragma once
#include <exception>
#include <functional>
#include <mutex>

#include "kernels/tensor/stream.h"

namespace ltrain {

/// What such work threw, on a thread that cannot let it through.
class HostFailure {
 public:
  /// Runs `work`; what it throws is kept.
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
  /// Throws what was kept, each time.
  void check() const {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
};

namespace cuda {

/// Runs `work` on a thread of the host, after everything enqueued on the stream before and before everything
/// enqueued later; it may not use a device. After it has thrown no more such work is run, and what it threw
/// is thrown by synchronize() and by the next call.
void run_on_host(Stream& s, std::function<void()> work);

}  // namespace cuda
}  // namespace ltrain
