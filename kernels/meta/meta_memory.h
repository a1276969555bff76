// Memory of the meta device: offsets as the arena would give, without bytes.
#pragma once
#include "kernels/meta/meta.h"
#include "kernels/tensor/arena.h"

namespace ltrain {

/// On meta: no memory; each tensor gets a record in the trace.
class MetaMemory final : public Memory {
 public:
  explicit MetaMemory(MetaTrace& trace) : trace_(trace) {}

 private:
  Tensor make(int64_t offset, std::string_view name, DType dtype, Shape shape) override;
  int64_t offset_of(const Tensor& t) const override;
  MetaTrace& trace_;
};

}  // namespace ltrain
