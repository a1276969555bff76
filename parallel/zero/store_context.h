// Shared context of the parts of a ParameterStore: streams, memory, groups, and the storage of parameters.
#pragma once
#include "kernels/tensor/arena.h"
#include "kernels/tensor/stream.h"
#include "parallel/mesh/groups.h"
#include "parallel/mesh/sharding_policy.h"
#include "parallel/optim/parameter_spec.h"

namespace ltrain {

struct StoreContext {
  Stream& compute;
  Memory& memory;
  const Groups& groups;
  PrecisionPolicy precision;
  ShardingPolicy sharding;

  bool meta() const { return compute.meta() != nullptr; }
};

}  // namespace ltrain
