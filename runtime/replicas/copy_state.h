// The state of a rank that a replica which joins copies from another one.
#pragma once
#include "parallel/zero/parameter_store.h"
#include "runtime/checkpoint/training_state.h"
#include "runtime/replicas/replica_group.h"

namespace ltrain {

/// A trainer's state beside the parameters and their optimizer state.
struct TrainerPosition {
  DataPosition data;
  int64_t earlier_updates = 0;  ///< updates in the optimizer state before step 0
};

/// Collective over the ranks of all members, in ReplicaGroup::begin_step.
void copy_state(ReplicaGroup& replicas, ParameterStore& parameters, TrainerPosition& position);

}  // namespace ltrain
