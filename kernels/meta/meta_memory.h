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
    int64_t bytes = 0;  ///< given, aligned
  };
  explicit MetaMemory(MetaTrace& trace) : trace_(trace) {}
  /// Appends what is asked of it from now on; null: no longer.
  void watch(std::vector<Request>* requests) { requests_ = requests; }
  /// The same requests without tensors, for what has been watched: the arena asks for no more than bytes, so
  /// that what kind they were is not counted again.
  int64_t repeat(int64_t bytes);
  void end_repeat(int64_t offset) { give_back(offset); }
  /// Of what repeat() gave, or allocate(), a tensor: as `like` but for where it lies.
  Tensor tensor_at(int64_t offset, DType dtype, Shape shape, const TensorRecord& like);

 private:
  Tensor make(int64_t offset, std::string_view name, DType dtype, Shape shape) override;
  int64_t offset_of(const Tensor& t) const override;
  MetaTrace& trace_;
  std::vector<Request>* requests_ = nullptr;
};

}  // namespace ltrain
