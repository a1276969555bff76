// What layers keep for their backward, in offload memory meanwhile: written out after the forward of a layer,
// asked for one layer before its backward (ZeRO-Infinity, arXiv:2104.07857, 5.1.2).
//
// Memory of the device is given back when the layer after has run, so that what is in use stays, and what
// was used least recently leaves. Both sides follow from the order of calls alone: a plan has their bytes.
#pragma once
#include <vector>

#include "kernels/storage/offload.h"
#include "kernels/tensor/arena.h"
#include "models/layers/recompute.h"

namespace ltrain {

struct ActivationOffloadOptions {
  double fraction = 0;     ///< of the layers of a stage, the first ones; 0: none leave
  BlockTensorSet tensors;  ///< of a layer, where it keeps them
  bool input = false;      ///< and what it was given
  bool any() const { return fraction > 0; }
};

/// Layers of a stage whose activations leave. `whole`: the stage is the whole model, and the backward of its
/// last layer follows on the forward: it stays.
int64_t layers_offloaded(const ActivationOffloadOptions& options, int64_t layers, bool whole);

/// Of one layer and micro-batch. Stays where it is while anything of it is away.
struct OffloadedTensors {
  enum State : uint8_t { here, leaving, offloaded, coming } state = here;
  struct Item {
    Tensor* tensor;  ///< the layer's
    Tensor was;      ///< as it left
    Tensor place;    ///< in offload memory
  };
  std::vector<Item> items;
  Event done;  ///< of the transfer under way
};

class ActivationOffload {
 public:
  /// `bytes`: of offload memory that is taken now; no more is used. On meta as much as is needed.
  ActivationOffload(Stream& compute, Memory& memory, OffloadMemory& slow, int64_t bytes);
  ~ActivationOffload();

  /// Writes out those of `tensors` that are defined, which nobody writes to before need(). They are still
  /// there until reclaim() without `a`.
  void offload(OffloadedTensors& a, const std::vector<Tensor*>& tensors);
  /// Frees the memory of what has been written, but for `but`.
  void reclaim(const OffloadedTensors* but = nullptr);
  /// Begins to bring it back.
  void prefetch(OffloadedTensors& a);
  /// Afterwards its tensors are there.
  void need(OffloadedTensors& a);
  /// Bytes of offload memory at most so far.
  int64_t peak_bytes() const;

 private:
  class Space;
  Stream& compute_;
  Memory& memory_;
  OffloadMemory& offload_memory_;
  std::unique_ptr<Space> space_;
  std::vector<OffloadedTensors*> leaving_;
};

}  // namespace ltrain
