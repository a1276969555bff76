#include "kernels/meta/meta_memory.h"

namespace ltrain {

Tensor MetaMemory::make(int64_t offset, std::string_view name, DType dtype, Shape shape) {
  Tensor t;
  t.dtype = dtype;
  t.device = DeviceKind::meta;
  t.shape = shape;
  t.record = trace_.new_record(name);
  t.record->memory = this;
  t.record->offset = offset;
  if (requests_) requests_->push_back({offset, false, dtype, shape});
  return t;
}

int64_t MetaMemory::offset_of(const Tensor& t) const {
  const int64_t offset = t.record && t.record->memory == this ? t.record->offset : -1;
  if (requests_) requests_->push_back({offset, true, t.dtype, {}});  // it is asked where a tensor comes back
  return offset;
}

}  // namespace ltrain
