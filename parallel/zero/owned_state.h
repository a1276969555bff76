// What of a rank's parameters checkpoints write and read.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor/tensor.h"
#include "parallel/mesh/sharding.h"

namespace ltrain {

/// An optimizer state by the name that checkpoints have for it: "exp_avg".
struct NamedState {
  std::string_view name;
  Tensor tensor;
};

/// Consecutive elements of one parameter that a rank owns, and where its states lie.
struct OwnedPiece {
  int id = 0;
  Slice slice;  ///< of the named tensor
  Tensor master;
  std::vector<NamedState>
      moments;  ///< of every element; those of 8 bits only between open and offload_states
  Tensor grad;  ///< after finish_gradients, until the next step; some optimizers leave their direction there
};

/// What rounding has left over of the sums of a parameter in a compressed all-reduce, for the next time: of
/// what this rank sends, or of what it sums for all.
struct RoundingError {
  int id = 0;
  Slice slice;  ///< of the named tensor
  bool sent = false;
  int rank = 0, ranks = 1;  ///< sent: of the group that sums
  Tensor tensor;
};

/// A tensor of the model that is no parameter, whole on every rank: saved and loaded with them.
struct RegisteredBuffer {
  std::string name;
  Tensor tensor;
};

}  // namespace ltrain
