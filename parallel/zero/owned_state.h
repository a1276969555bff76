// Parts of a rank's parameters that checkpoints write and read.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "kernels/matmul/nf4.h"
#include "kernels/tensor/tensor.h"
#include "parallel/mesh/sharding.h"

namespace ltrain {

/// An optimizer state with its name in checkpoints: "exp_avg".
struct NamedState {
  std::string_view name;
  Tensor tensor;
};

/// Consecutive elements of one parameter that a rank owns, with their states.
struct OwnedPiece {
  int id = 0;
  Slice slice;    ///< position in the named tensor
  Tensor master;  ///< undefined if it is in NF4
  /// Weights that are saved under the parameter's name, where `master` is a state: those that sites share
  /// (streaming DiLoCo), or masked ones.
  Tensor shared;
  Nf4Matrix nf4;  ///< frozen weights in NF4, full blocks
  std::vector<NamedState>
      moments;  ///< all states of an element; 8-bit ones only between prefetch_states and offload_states
  Tensor grad;  ///< after finish_gradients, until the next step; some optimizers leave their direction in it
};

/// Rounding error of a parameter in a compressed all-reduce, for the next step: of the values that this rank
/// sends, or of the sums that it computes for all.
struct RoundingError {
  int id = 0;
  Slice slice;  ///< position in the named tensor
  bool sent = false;
  int rank = 0, ranks = 1;  ///< sent: rank and size of the group that sums
  Tensor tensor;
};

/// A tensor of the model beside its parameters, full on every rank, saved and loaded with them.
struct RegisteredBuffer {
  std::string name;
  Tensor tensor;
};

}  // namespace ltrain
