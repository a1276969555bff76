// Dynamic loss scaling (arXiv:1710.03740): gradients of fp16 runs are multiplied by a scale that keeps small
// values above 2^-24 and large ones below 65504, found by trial.
#pragma once
#include <cstdint>

namespace ltrain {

struct LossScaleSettings {
  double initial = 65536;
  double growth_factor = 2;  ///< after `window` steps in a row without overflow
  double backoff_factor = 0.5;
  double minimum = 1;
  int64_t window = 1000;
  int64_t hysteresis = 2;  ///< overflows since the last growth that make the scale back off
};

/// State for checkpoints.
struct LossScaleState {
  double scale = 0;
  int64_t good_steps = 0;  ///< steps in a row without overflow
  int64_t hysteresis = 0;  ///< overflows left until the scale backs off
  bool operator==(const LossScaleState&) const = default;
};

class LossScaler {
 public:
  explicit LossScaler(const LossScaleSettings& settings)
      : settings_(settings), state_{settings.initial, 0, settings.hysteresis} {}

  double scale() const { return state_.scale; }
  /// Called after a step. `overflow`: some gradient was not finite, the same value on all ranks.
  void note(bool overflow);

  const LossScaleState& state() const { return state_; }
  void restore(const LossScaleState& state) { state_ = state; }

 private:
  LossScaleSettings settings_;
  LossScaleState state_;
};

}  // namespace ltrain
