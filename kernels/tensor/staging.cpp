#include "kernels/tensor/staging.h"

namespace ltrain {

Staging::Staging(Stream& stream, Memory* host, int64_t slots, int64_t slot_bytes)
    : stream_(stream), slots_(slots), slot_bytes_(room(slot_bytes)) {
  if (!host) return;
  memory_ = host->allocate(MemoryKind::temporaries, "staging", DType::u8, {slots_ * slot_bytes_});
  done_.resize(static_cast<size_t>(slots_));
}

void Staging::open() {
  if (stream_.meta() || !memory_.defined()) return;
  at_ = (at_ + 1) % slots_;
  used_ = 0;
  if (const Event& e = done_[static_cast<size_t>(at_)]; e.state()) e.state()->block();
}

void Staging::put(Tensor to, const void* from) {
  if (stream_.meta()) return;
  const int64_t bytes = to.bytes();
  if (!memory_.defined()) return stream_.copy(to.data, from, bytes);
  LT_CHECK(used_ + room(bytes) <= slot_bytes_, "expected at most {} bytes in a staging slot, got {} after {}",
           slot_bytes_, bytes, used_);
  char* host = slot() + used_;
  used_ += room(bytes);
  std::memcpy(host, from, static_cast<size_t>(bytes));
  stream_.copy(to.data, host, bytes);
}

void Staging::close() {
  if (stream_.meta() || !memory_.defined()) return;
  done_[static_cast<size_t>(at_)] = stream_.record();
}

void Staging::get(void* to, Tensor from) {
  if (stream_.meta()) return;
  if (!memory_.defined()) return download(stream_, to, from);
  open();
  LT_CHECK(from.bytes() <= slot_bytes_, "expected at most {} bytes in a staging slot, got {}", slot_bytes_,
           from.bytes());
  stream_.copy(slot(), from.data, from.bytes());
  stream_.synchronize();
  std::memcpy(to, slot(), static_cast<size_t>(from.bytes()));
}

void upload(Stream& s, Tensor to, const void* from) {
  if (s.meta()) return;
  s.copy(to.data, from, to.bytes());
  s.synchronize();
}

void download(Stream& s, void* to, Tensor from) {
  if (s.meta()) return;
  s.copy(to, from.data, from.bytes());
  s.synchronize();
}

}  // namespace ltrain
