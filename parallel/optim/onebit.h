// Common part of 1-bit Adam (arXiv:2102.02888) and 1-bit LAMB (arXiv:2104.06069). After a warm-up the second
// moment is frozen. Each rank updates the first moment by its own gradient, and ranks average these moments,
// in one bit for each element, instead of gradients.
#pragma once
#include "kernels/optimizer/onebit/onebit.h"
#include "parallel/optim/tensor_sums.h"

namespace ltrain {

class OnebitOptimizer : public Optimizer {
 public:
  bool by_element() const override { return false; }
  std::string_view moves_zeros(const OptimizerHyperparameters&) const override {
    return "1-bit rules average signs, which zeros have too";
  }
  bool averages_moments() const override { return true; }
  StepKinds step_kinds(const OptimizerSettings& o) const override {
    return {"warm-up", o.freeze_step + 1, {1}, o.freeze_step, 0};
  }
  bool sums_gradients(const OptimizerSettings& o, int64_t step) const override {
    return step <= o.freeze_step;
  }
};

/// Steps after the warm-up. The optimizer averages moments with average(), and moves weights in update().
class OnebitUpdate : public TensorUpdate {
 public:
  explicit OnebitUpdate(UpdateContext& c);
  /// Adds the mean over ranks of the squares of each rank's own gradients, times the number of ranks.
  void add_own_squares(const Tensor& own, int ranks, const Tensor& total) override;

 protected:
  bool frozen() { return c_.step_number() > c_.settings().freeze_step; }
  bool first_frozen() { return c_.step_number() == c_.settings().freeze_step + 1; }
  /// Starts the averages of first moments, which replace gradients. `before`: called with the elements of
  /// each bucket before its average.
  void average(UpdateRule rule, const std::function<void(const Elements&)>& before);
  OnebitArgs args(const ParameterPart& p) { return {p.args, c_.settings().freeze_step}; }

  UpdateContext& c_;

 private:
  Tensor own_squares_;  // (1) f64, for a bucket without a gradient sum
};

}  // namespace ltrain
