#include "models/layers/activation_offload.h"

#include <algorithm>
#include <cmath>

#include "kernels/meta/meta.h"

namespace ltrain {

int64_t layers_offloaded(const ActivationOffloadOptions& o, int64_t layers, bool whole) {
  if (!o.any()) return 0;
  const int64_t n = std::max<int64_t>(1, std::llround(o.fraction * static_cast<double>(layers)));
  return std::min(n, whole ? layers - 1 : layers);
}

/// Allocation of offload memory: the arena's allocator over offsets.
class ActivationOffload::Space final : public Memory {
 public:
  explicit Space(int64_t bytes) { capacity_ = bytes; }
  /// Allocates full blocks, so that files can be accessed without the page cache.
  Tensor take(const Tensor& t) {
    return allocate(MemoryKind::activations, "offloaded activation", DType::u8,
                    {(t.bytes() + kOffloadBlock - 1) / kOffloadBlock * kOffloadBlock});
  }
  int64_t offset(const Tensor& t) const { return offset_of(t); }

 private:
  // A tensor with null data would be undefined: offsets start at one alignment.
  Tensor make(int64_t offset, MemoryKind, std::string_view, DType dtype, Shape shape) override {
    Tensor t;
    t.data = reinterpret_cast<void*>(offset + kAlignment);
    t.dtype = dtype;
    t.shape = shape;
    return t;
  }
  int64_t offset_of(const Tensor& t) const override {
    return static_cast<int64_t>(reinterpret_cast<intptr_t>(t.data)) - kAlignment;
  }
};

ActivationOffload::ActivationOffload(Stream& compute, Memory& memory, OffloadMemory& offload, int64_t bytes)
    : compute_(compute), memory_(memory), offload_memory_(offload), space_(std::make_unique<Space>(bytes)) {
  if (!compute.meta()) offload_memory_.reserve(bytes);
}
ActivationOffload::~ActivationOffload() = default;

int64_t ActivationOffload::peak_bytes() const { return space_->peak().arena_bytes; }

void ActivationOffload::offload(OffloadedTensors& a, const std::vector<Tensor*>& tensors) {
  LT_CHECK(a.state == OffloadedTensors::here, "expected activations in memory for an offload, got state {}",
           static_cast<int>(a.state));
  a.items.clear();
  for (Tensor* t : tensors)
    if (t->defined()) a.items.push_back({t, *t, space_->take(*t)});
  if (a.items.empty()) return;
  offload_memory_.stream().wait(compute_.record());
  for (const OffloadedTensors::Item& i : a.items) offload_memory_.store(i.was, space_->offset(i.place));
  a.done = offload_memory_.stream().record();
  a.state = OffloadedTensors::leaving;
  leaving_.push_back(&a);
}

void ActivationOffload::reclaim(const OffloadedTensors* but) {
  std::erase_if(leaving_, [&](OffloadedTensors* a) {
    if (a == but) return false;
    compute_.wait(a->done);  // the next user of the memory comes after it
    for (const OffloadedTensors::Item& i : a->items) memory_.release(*i.tensor);
    a->state = OffloadedTensors::offloaded;
    return true;
  });
}

void ActivationOffload::prefetch(OffloadedTensors& a) {
  if (a.state == OffloadedTensors::leaving) {  // still in memory
    compute_.wait(a.done);                     // backward writes to some of them
    std::erase(leaving_, &a);
    for (OffloadedTensors::Item& i : a.items) space_->release(i.place);
    a.items.clear();
    a.state = OffloadedTensors::here;
  }
  if (a.state != OffloadedTensors::offloaded) return;
  for (const OffloadedTensors::Item& i : a.items) {
    *i.tensor = memory_.allocate(MemoryKind::activations, "offloaded activation", i.was.dtype, i.was.shape);
    if (!compute_.meta()) continue;
    TensorRecord& now = *i.tensor->record;  // same record as before, except for its location
    const void* memory = now.memory;
    const int64_t offset = now.offset;
    now = *i.was.record;
    now.memory = memory;
    now.offset = offset;
  }
  offload_memory_.stream().wait(compute_.record());
  for (OffloadedTensors::Item& i : a.items) {
    offload_memory_.fetch(*i.tensor, space_->offset(i.place));
    space_->release(i.place);  // the next store there comes later on the stream
  }
  a.done = offload_memory_.stream().record();
  a.state = OffloadedTensors::coming;
}

void ActivationOffload::need(OffloadedTensors& a) {
  prefetch(a);
  if (a.state != OffloadedTensors::coming) return;
  compute_.wait(a.done);
  a.items.clear();
  a.state = OffloadedTensors::here;
}

}  // namespace ltrain
