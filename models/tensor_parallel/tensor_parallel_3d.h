// Common code of layers with 3D tensor parallelism: the axes over which a matmul gathers and sums, the gather
// of a weight sharded over depth, and the sum of its gradient.
#pragma once
#include "models/layers/tensor_parallel.h"

namespace ltrain {

/// Axes of a matmul: the operand's rows are gathered over `rows`, the result's rows are reduce-scattered over
/// `sum`.
struct Way3d {
  const Group &rows, &sum;
};
/// `inwards`: from the residual stream into a sublayer; otherwise back.
inline Way3d way_3d(const Groups& g, bool inwards) {
  return inwards ? Way3d{g.row, g.column} : Way3d{g.column, g.row};
}

/// A unit of `parts` parameters, gathered over depth part by part, so that each part's rows are consecutive.
struct GatheredWeight {
  Tensor whole;
  AsyncHandle done;
  bool own = false;              ///< `whole` is the parameter itself: depth has one rank
  std::vector<Tensor> gathered;  ///< its parts as collectives left them
  Tensor wait(Step& step);
  void release(Step& step) {
    if (!own) step.release(whole);
  }
};
GatheredWeight gather_weight_start(Step& step, int weight, int parts);

/// Sum over depth of the gradient of such a unit.
class WeightSum3d {
 public:
  WeightSum3d(Step& step, const GradBuffer& to, int weight, int parts);
  /// Destination of this rank's summand, and if it is added to.
  Tensor summand() const { return whole_; }
  bool accumulate() const { return group_.size() == 1 && to_.accumulate; }
  /// Sums, and adds the result to the target.
  void finish();

 private:
  Step& step_;
  const Group& group_;
  GradBuffer to_;
  int weight_, parts_;
  Tensor whole_;
};

}  // namespace ltrain
