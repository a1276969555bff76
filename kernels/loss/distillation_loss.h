// Weights of the two terms of a distillation loss.
#pragma once

namespace ltrain {

/// Loss of a token (arXiv:1503.02531): (1 - kd_ratio) * cross-entropy of its label + kd_ratio * temperature^2
/// * KL(teacher || student), both distributions at the temperature.
struct DistillationLoss {
  double kd_ratio = 0.5;
  double temperature = 1;
  /// Mean loss for the means of the two terms.
  double of(double cross_entropy, double divergence) const {
    return (1 - kd_ratio) * cross_entropy + kd_ratio * temperature * temperature * divergence;
  }
};

}  // namespace ltrain
