// Memory of the meta device: offsets as the arena would give, without bytes.
#pragma once
#include <vector>

#include "kernels/meta/meta.h"
#include "kernels/tensor/arena.h"

namespace ltrain {

/// On meta: no memory; each tensor gets a record in the trace.
class MetaMemory final : public Memory {
 public:
  struct Request {
    int64_t offset = 0;  ///< of what was given, or came back
    bool release = false;
    DType dtype = DType::f32;  ///< given
    Shape shape;
  };
  explicit MetaMemory(MetaTrace& trace) : trace_(trace) {}
  /// Appends what is asked of it from now on; null: no longer.
  void watch(std::vector<Request>* requests) { requests_ = requests; }

 private:
  Tensor make(int64_t offset, std::string_view name, DType dtype, Shape shape) override;
  int64_t offset_of(const Tensor& t) const override;
  MetaTrace& trace_;
  std::vector<Request>* requests_ = nullptr;
};

}  // namespace ltrain
