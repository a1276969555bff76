#include "models/layers/weight_gradients.h"

#include "models/layers/step.h"

namespace ltrain {

void WeightGradients::run(Step& step) {
  for (auto& work : work_) work(step);
  for (Tensor& t : released_) step.memory.release(t);
  work_.clear();
  kept_.clear();
  released_.clear();
}

}  // namespace ltrain
