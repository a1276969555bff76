// Numbers of one update, which every optimizer is called with.
#pragma once
#include <cstdint>

namespace ltrain {

/// From the recipe and its schedule, with the parameter's own learning rate and weight decay where an
/// optimizer gets it. Settings of one kind of optimizer are in OptimizerHyperparameters.
struct OptimizerStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double grad_scale = 1;  ///< factor of the gradient: clipping
  int64_t step = 1;       ///< from 1, for the bias corrections
  bool coupled = false;   ///< Adam: the decay is added to the gradient
};

}  // namespace ltrain
