// What layers of a tensor-parallel cube have in common: which axes a product gathers and sums over, and how a
// weight that is cut over depth comes together and its gradient apart.
#pragma once
#include "models/layers/tensor_parallel.h"

namespace ltrain {

/// Rows of the operand are gathered over one axis, rows of the result are reduce-scattered over another.
struct Way3d {
  const Group &rows, &sum;
};
/// `inwards`: from the residual stream into a sublayer; else back.
inline Way3d way_3d(const Groups& g, bool inwards) {
  return inwards ? Way3d{g.row, g.column} : Way3d{g.column, g.row};
}

/// A unit of `parts` parameters, gathered over depth part by part, so that each part's rows are consecutive.
struct GatheredWeight {
  Tensor whole;
  AsyncHandle done;
  bool own = false;              ///< `whole` is the parameter itself: there is one rank
  std::vector<Tensor> gathered;  ///< its parts, as collectives left them
  Tensor wait(Step& step);
  void release(Step& step) {
    if (!own) step.release(whole);
  }
};
GatheredWeight gather_weight_start(Step& step, int weight, int parts);

/// The sum over depth of the gradient of such a unit.
class WeightSum3d {
 public:
  WeightSum3d(Step& step, const GradBuffer& to, int weight, int parts);
  /// Where to write this rank's summand; whether to add to what is there.
  Tensor summand() const { return whole_; }
  bool accumulate() const { return group_.size() == 1 && to_.accumulate; }
  /// Sums it, and adds the result to the target.
  void finish();

 private:
  Step& step_;
  const Group& group_;
  GradBuffer to_;
  int weight_, parts_;
  Tensor whole_;
};

}  // namespace ltrain
