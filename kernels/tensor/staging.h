// What a step gives to its device and gets back, through host memory that the device copies by itself. On the
// CPU the host's memory is the device's, and nothing lies between.
#pragma once
#include <cstring>
#include <vector>

#include "kernels/tensor/arena.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

class Staging {
 public:
  /// Slots of `slot_bytes` each in `host`; without `host` there is nothing between, as on the CPU. On meta it
  /// only sizes the host's memory. A slot is used again when its copies are done.
  Staging(Stream& stream, Memory* host, int64_t slots, int64_t slot_bytes);

  /// The bytes that one put() of `bytes` takes from a slot.
  static int64_t room(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  /// Opens the next slot for put().
  void open();
  /// Bytes of the host into `to`. `from` may change when it returns; `to` has them in the stream's order.
  void put(Tensor to, const void* from);
  /// The slot's copies end with what was put.
  void close();
  /// Waits for the stream; then `to` has the bytes of `from`, which must fit into a slot.
  void get(void* to, Tensor from);

 private:
  static constexpr int64_t kAlign = 64;
  char* slot() const { return static_cast<char*>(memory_.data) + at_ * slot_bytes_; }

  Stream& stream_;
  Tensor memory_;  // (slots * slot_bytes) u8 of the host
  int64_t slots_, slot_bytes_;
  std::vector<Event> done_;  // by slot
  int64_t at_ = 0, used_ = 0;
};

/// For set-up: puts bytes into a tensor and waits. `from` is any host memory.
void upload(Stream& s, Tensor to, const void* from);
/// For set-up and tests: the bytes of a tensor, on the host.
void download(Stream& s, void* to, Tensor from);

}  // namespace ltrain
