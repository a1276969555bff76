// Host memory through which a step's inputs and results are copied asynchronously to and from its device. On
// the CPU no staging is needed.
#pragma once
#include <cstring>
#include <vector>

#include "kernels/tensor/arena.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

class Staging {
 public:
  /// `host` gets `slots` slots of `slot_bytes` each; null on the CPU, where copies are direct. On meta only
  /// the size of the host memory counts. A slot is reused after its copies are done.
  Staging(Stream& stream, Memory* host, int64_t slots, int64_t slot_bytes);

  /// Bytes of a slot that one put() of `bytes` takes.
  static int64_t room(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  /// Opens the next slot for put().
  void open();
  /// Copies host bytes into `to`, in the order of the stream. `from` may change after the return.
  void put(Tensor to, const void* from);
  /// Ends the copies of the slot.
  void close();
  /// Waits for the stream and copies the bytes of `from`, at most slot_bytes, into `to`.
  void get(void* to, Tensor from);

 private:
  static constexpr int64_t kAlign = 64;
  char* slot() const { return static_cast<char*>(memory_.data) + at_ * slot_bytes_; }

  Stream& stream_;
  Tensor memory_;  // (slots * slot_bytes) u8 in host memory
  int64_t slots_, slot_bytes_;
  std::vector<Event> done_;  // one event for each slot
  int64_t at_ = 0, used_ = 0;
};

/// For set-up: copies bytes into a tensor and waits. `from` is any host memory.
void upload(Stream& s, Tensor to, const void* from);
/// For set-up and tests: copies the bytes of a tensor to the host and waits.
void download(Stream& s, void* to, Tensor from);

}  // namespace ltrain
