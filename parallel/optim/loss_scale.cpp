#include "parallel/optim/loss_scale.h"

#include <algorithm>

namespace ltrain {

void LossScaler::note(bool overflow) {
  if (overflow) {
    state_.good_steps = 0;
    if (state_.hysteresis > 0) --state_.hysteresis;
    if (state_.hysteresis == 0)
      state_.scale = std::max(settings_.minimum, state_.scale * settings_.backoff_factor);
    return;
  }
  if (++state_.good_steps < settings_.window) return;
  state_.good_steps = 0;
  state_.hysteresis = settings_.hysteresis;
  state_.scale = std::min(state_.scale * settings_.growth_factor, 0x1p60);  // far above any useful scale
}

}  // namespace ltrain
