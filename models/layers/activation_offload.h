// Activation offloading: tensors that layers save for backward are written to offload memory after the
// forward of a layer, and prefetched one layer before its backward (ZeRO-Infinity, arXiv:2104.07857, 5.1.2).
//
// Device memory is reclaimed after the next layer has run, so that tensors in use stay, and the least
// recently used ones leave. Both follow from the order of calls alone, so that a plan has their bytes.
#pragma once
#include <vector>

#include "kernels/storage/offload.h"
#include "kernels/tensor/arena.h"
#include "models/layers/recompute.h"

namespace ltrain {

struct ActivationOffloadOptions {
  double fraction = 0;     ///< fraction of a stage's layers, the first ones; 0: off
  BlockTensorSet tensors;  ///< tensors of a layer to offload, if it keeps them
  bool input = false;      ///< also offload the layer's input
  bool any() const { return fraction > 0; }
};

/// Number of a stage's layers with offloaded activations. `whole`: the stage is the full model; its last
/// layer then keeps its activations, because its backward follows at once.
int64_t layers_offloaded(const ActivationOffloadOptions& options, int64_t layers, bool whole);

/// Offloaded tensors of one layer and micro-batch. Must not move while any of them is offloaded.
struct OffloadedTensors {
  enum State : uint8_t { here, leaving, offloaded, coming } state = here;
  struct Item {
    Tensor* tensor;  ///< tensor of the layer
    Tensor was;      ///< copy of the tensor from before
    Tensor place;    ///< location in offload memory
  };
  std::vector<Item> items;
  Event done;  ///< transfer in flight
};

class ActivationOffload {
 public:
  /// `bytes`: size of offload memory, allocated now and never exceeded. Unlimited on meta.
  ActivationOffload(Stream& compute, Memory& memory, OffloadMemory& offload, int64_t bytes);
  ~ActivationOffload();

  /// Writes out the defined ones of `tensors`, which must not be written before need(). They stay in memory
  /// until reclaim() without `a`.
  void offload(OffloadedTensors& a, const std::vector<Tensor*>& tensors);
  /// Frees the memory of written tensors, except those of `but`.
  void reclaim(const OffloadedTensors* but = nullptr);
  /// Starts to bring the tensors back.
  void prefetch(OffloadedTensors& a);
  /// Waits until the tensors are back.
  void need(OffloadedTensors& a);
  /// Peak bytes of offload memory so far.
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
