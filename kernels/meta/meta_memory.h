// Memory of the meta device: the arena's offsets, without bytes.
#pragma once
#include <vector>

#include "kernels/meta/meta.h"
#include "kernels/tensor/arena.h"

namespace ltrain {

/// Memory on meta; each tensor gets a record in the trace.
class MetaMemory final : public Memory {
 public:
  struct Request {
    int64_t offset = 0;  ///< offset allocated or released
    bool release = false;
    MemoryKind kind = MemoryKind::temporaries;  ///< kind of what was allocated
    int64_t bytes = 0;                          ///< allocated bytes, aligned
  };
  explicit MetaMemory(MetaTrace& trace) : trace_(trace) {}
  /// Appends all requests from now on; null stops.
  void watch(std::vector<Request>* requests) { requests_ = requests; }
  /// Repeats watched requests without tensors.
  int64_t repeat(MemoryKind kind, int64_t bytes);
  void end_repeat(int64_t offset) { deallocate(offset); }
  using Memory::below_peak;
  /// Tensor at an offset from repeat() or allocate(), like `like` except for its offset.
  Tensor tensor_at(int64_t offset, DType dtype, Shape shape, const TensorRecord& like);

 private:
  Tensor make(int64_t offset, MemoryKind kind, std::string_view name, DType dtype, Shape shape) override;
  int64_t offset_of(const Tensor& t) const override;
  MetaTrace& trace_;
  std::vector<Request>* requests_ = nullptr;
};

}  // namespace ltrain
