// Sums over the replicas of a job within a step. They may fail, because a replica may be gone at any time;
// the step is then not applied, and made again by the replicas that are left.
#pragma once
#include <cstdint>
#include <functional>

#include "kernels/tensor/stream.h"

namespace ltrain {

class ReplicaSums {
 public:
  virtual ~ReplicaSums() = default;
  /// Sums in place, over the ranks with this rank's position in each replica. After a failure the values are
  /// undefined, and later sums do nothing. `t` is in host memory, and no stream uses it.
  virtual void sum(Tensor t) = 0;
  /// Collective over the ranks of all replicas, after the last sum of a step: whether all sums are complete,
  /// so that all replicas apply the step. `leaves`: this replica takes part in no further step.
  virtual bool commit(bool leaves) = 0;
};

/// Waits for the stream and runs `f` on the tensor, by way of a copy in host memory if a device has it. `f`
/// gets one part after the other.
void through_host(Stream& s, Tensor t, const std::function<void(Tensor)>& f);

}  // namespace ltrain
