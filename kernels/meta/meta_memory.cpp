#include "kernels/meta/meta_memory.h"

#include <string>

namespace ltrain {

Tensor MetaMemory::make(int64_t offset, std::string_view name, DType dtype, Shape shape) {
  Tensor t;
  t.dtype = dtype;
  t.device = DeviceKind::meta;
  t.shape = shape;
  t.record = trace_.new_record(std::string(name));
  offsets_[t.record] = offset;
  return t;
}

int64_t MetaMemory::offset_of(const Tensor& t) const {
  auto it = offsets_.find(t.record);
  return it == offsets_.end() ? -1 : it->second;
}

}  // namespace ltrain
