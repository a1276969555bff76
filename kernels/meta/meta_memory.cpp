#include "kernels/meta/meta_memory.h"

#include "base/interned.h"

namespace ltrain {

Tensor MetaMemory::make(int64_t offset, MemoryKind kind, std::string_view name, DType dtype, Shape shape) {
  Tensor t;
  t.dtype = dtype;
  t.device = DeviceKind::meta;
  t.shape = shape;
  t.record = trace_.new_record(name);
  t.record->memory = this;
  t.record->offset = offset;
  if (requests_) requests_->push_back({offset, false, kind, aligned(shape.elements() * dtype_size(dtype))});
  return t;
}

int64_t MetaMemory::repeat(MemoryKind kind, int64_t bytes) {
  static const std::string_view name = interned("repeated");
  return take(kind, name, bytes);
}

Tensor MetaMemory::tensor_at(int64_t offset, DType dtype, Shape shape, const TensorRecord& like) {
  Tensor t;
  t.dtype = dtype;
  t.device = DeviceKind::meta;
  t.shape = shape;
  t.record = trace_.new_record(like.name);
  *t.record = like;
  t.record->memory = this;
  t.record->offset = offset;
  return t;
}

int64_t MetaMemory::offset_of(const Tensor& t) const {
  const int64_t offset = t.record && t.record->memory == this ? t.record->offset : -1;
  if (requests_) requests_->push_back({offset, true});  // called when a tensor is released
  return offset;
}

}  // namespace ltrain
