// Requests to a device's memory that fail, and their purpose.
#pragma once
#include <cstdint>
#include <string>

#include "base/error.h"

namespace ltrain {

/// A device, or the host for it, has no room for a request.
class OutOfMemory : public Error {
 public:
  /// `device_bytes`: requested memory of a GPU; 0: the request was to the host.
  OutOfMemory(ExitCode code, const std::string& text, int64_t device_bytes)
      : Error(code, text), device_bytes_(device_bytes) {}
  int64_t device_bytes() const { return device_bytes_; }

 private:
  int64_t device_bytes_;
};

/// Names the purpose of the thread's requests to a device's memory, while it lives. The innermost one counts.
class MemoryPurpose {
 public:
  explicit MemoryPurpose(std::string purpose);
  ~MemoryPurpose();
  MemoryPurpose(const MemoryPurpose&) = delete;
  MemoryPurpose& operator=(const MemoryPurpose&) = delete;
  /// "for the arena"; for a request without a named purpose the thread's last op.
  static std::string text();

 private:
  std::string outer_;
};

}  // namespace ltrain
