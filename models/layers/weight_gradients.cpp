#include "models/layers/weight_gradients.h"

#include "models/layers/step.h"

namespace ltrain {

void WeightGradients::run(Step& step) {
  for (size_t i = 0; i < work_.size(); ++i) {
    if (i == 0 && work_[0].fetch) work_[0].fetch(step);
    if (i + 1 < work_.size() && work_[i + 1].fetch) work_[i + 1].fetch(step);
    work_[i].run(step);
  }
  for (Tensor& t : released_) step.memory.release(t);
  work_.clear();
  kept_.clear();
  released_.clear();
}

}  // namespace ltrain
