// Settings of DiLoCo (arXiv:2311.08105): sites that train apart and average their changes now and then.
#pragma once
#include <cstdint>

namespace ltrain {

struct DilocoSettings {
  int64_t sites = 0;  ///< 0: off
  int64_t inner_steps = 100;
  double outer_lr = 0.7, outer_momentum = 0.9;
  bool nesterov = true;

  bool on() const { return sites > 0; }
  /// True if sites synchronize after step `step`, counted from 1.
  bool synchronizes_after(int64_t step) const { return on() && step % inner_steps == 0; }
};

}  // namespace ltrain
