// Keys of `train` that the step program reads itself.
#pragma once

namespace ltrain {

struct StepSettings {
  double clip_grad = 1.0;     ///< 0: no clipping
  double skip_grad_norm = 0;  ///< gradient norm above which the update is skipped; 0: no limit
  double z_loss_coeff = 0;    ///< coefficient of the z-loss on output logits; 0: none
  double stop_loss = 0;       ///< loss above which training has diverged and the run ends; 0: no limit
  double ema_decay = 0;       ///< decay of the EMA of the weights, which evaluation uses; 0: no EMA
};

}  // namespace ltrain
