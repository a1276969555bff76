// Loss of one preference pair, in double, for host and device.
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/tensor/host_device.h"

namespace ltrain {

enum class PreferenceKind : uint8_t {
  sigmoid,       ///< DPO (arXiv:2305.18290); with label smoothing, conservative DPO
  ipo,           ///< squared distance of the margin of means to 1 / (2 beta) (arXiv:2310.12036)
  hinge,         ///< max(0, 1 - beta * margin) (arXiv:2305.10425)
  robust,        ///< DPO, unbiased under labels flipped with the smoothing's probability (arXiv:2403.00409)
  sigmoid_norm,  ///< DPO on means (arXiv:2411.15124)
  simpo,         ///< means without a reference, with a margin gamma (arXiv:2405.14734)
  apo_zero,      ///< raises the chosen text, lowers the rejected one (arXiv:2408.06266)
  orpo,          ///< log odds ratio of means without a reference (arXiv:2403.07691)
  kto,           ///< one labelled text at a time, against a divergence (arXiv:2402.01306): kto_loss
  apo_zero_unpaired,  ///< apo_zero for one labelled text at a time: kto_loss without a divergence
  /// Bradley-Terry: sums are the scores of a reward model. The reference of a chosen text is its pair's
  /// margin.
  reward,
};

/// Origin of the sums of a reference.
enum class PreferenceReference : uint8_t {
  precomputed,   ///< one pass over all texts before the first step
  adapters_off,  ///< in each step, a forward pass of the model without its adapters
  resident,      ///< in each step, a forward pass of a frozen model that stays in memory
};

struct PreferenceLoss {
  PreferenceKind kind = PreferenceKind::sigmoid;
  double beta = 0.1;
  double label_smoothing = 0;                           ///< sigmoid, robust
  double gamma = 0;                                     ///< simpo
  double desirable_weight = 1, undesirable_weight = 1;  ///< labelled: factors of the losses of both labels
  double divergence = 0;          ///< kto: estimate of the policy's divergence from the reference, at least 0
  double center_coefficient = 0;  ///< reward: factor of the squared sum of both scores
  bool has_reference() const {
    return kind != PreferenceKind::simpo && kind != PreferenceKind::orpo && kind != PreferenceKind::reward;
  }
  /// Single texts with labels instead of pairs.
  bool labelled() const { return kind == PreferenceKind::kto || kind == PreferenceKind::apo_zero_unpaired; }
  bool estimates_divergence() const { return kind == PreferenceKind::kto; }
};

/// The loss of a step: sum over its pairs / their global number, plus sft_weight times the cross-entropy of
/// the chosen texts / the global number of their counted tokens.
struct PreferenceSettings : PreferenceLoss {
  double sft_weight = 0;
  PreferenceReference reference = PreferenceReference::precomputed;  ///< for losses that have one

  /// Each step makes the sums of the reference for its texts.
  bool references_in_step() const { return has_reference() && reference != PreferenceReference::precomputed; }
  /// A frozen reference model stays in memory beside the one that trains.
  bool resident_reference() const { return has_reference() && reference == PreferenceReference::resident; }
};

/// Loss of one labelled text.
struct ExampleLoss {
  double loss = 0;
  double d_text = 0;  ///< gradient with respect to the policy's sum; the divergence is a constant
  double reward = 0;
};

/// A text: sum of log-probabilities of its counted tokens, the reference's sum, and their number. reward: the
/// score of its last token.
struct TextSum {
  double policy = 0, reference = 0, tokens = 1;
};

struct PairLoss {
  double loss = 0;
  double d_chosen = 0, d_rejected = 0;  ///< gradients with respect to the policy's sums
  double chosen_reward = 0, rejected_reward = 0;
};

LT_HD inline double log_sigmoid(double x) {
  return x < 0 ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x));
}
LT_HD inline double sigmoid_of(double x) {
  if (x >= 0) return 1 / (1 + std::exp(-x));
  const double e = std::exp(x);
  return e / (1 + e);
}

LT_HD inline PairLoss preference_loss(const PreferenceLoss& s, const TextSum& w, const TextSum& l) {
  PairLoss p;
  const double b = s.beta, e = s.label_smoothing;
  const double yw = w.policy - w.reference, yl = l.policy - l.reference;
  p.chosen_reward = b * yw;
  p.rejected_reward = b * yl;
  double scale_w = 1, scale_l = 1, slope = 0;  // slope: gradient with respect to the margin
  switch (s.kind) {
    case PreferenceKind::sigmoid:
    case PreferenceKind::robust: {
      const double x = b * (yw - yl), n = s.kind == PreferenceKind::robust ? 1 / (1 - 2 * e) : 1;
      const double flipped = s.kind == PreferenceKind::robust ? -e : e;
      p.loss = n * (-(1 - e) * log_sigmoid(x) - flipped * log_sigmoid(-x));
      slope = n * b * (-(1 - e) * sigmoid_of(-x) + flipped * sigmoid_of(x));
      break;
    }
    case PreferenceKind::hinge: {
      const double left = 1 - b * (yw - yl);
      p.loss = left > 0 ? left : 0;
      slope = left > 0 ? -b : 0;
      break;
    }
    case PreferenceKind::ipo: {
      scale_w = 1 / w.tokens, scale_l = 1 / l.tokens;
      const double far = yw * scale_w - yl * scale_l - 1 / (2 * b);
      p.loss = far * far;
      slope = 2 * far;
      break;
    }
    case PreferenceKind::sigmoid_norm:
    case PreferenceKind::simpo: {
      scale_w = 1 / w.tokens, scale_l = 1 / l.tokens;
      const bool norm = s.kind == PreferenceKind::sigmoid_norm;
      if (!norm) {
        p.chosen_reward = b * w.policy * scale_w;
        p.rejected_reward = b * l.policy * scale_l;
      }
      const double margin = norm ? yw * scale_w - yl * scale_l : w.policy * scale_w - l.policy * scale_l;
      const double x = b * margin - (norm ? 0 : s.gamma);
      p.loss = -log_sigmoid(x);
      slope = -b * sigmoid_of(-x);
      break;
    }
    case PreferenceKind::apo_zero: {
      const double up = sigmoid_of(b * yw), down = sigmoid_of(b * yl);
      p.loss = 1 - up + down;
      p.d_chosen = -b * up * (1 - up);
      p.d_rejected = b * down * (1 - down);
      return p;
    }
    case PreferenceKind::reward: {
      const double beyond = yw - l.policy, sum = w.policy + l.policy, c = s.center_coefficient;
      p.chosen_reward = w.policy;
      p.rejected_reward = l.policy;
      p.loss = -log_sigmoid(beyond) + c * sum * sum;
      p.d_chosen = -sigmoid_of(-beyond) + 2 * c * sum;
      p.d_rejected = sigmoid_of(-beyond) + 2 * c * sum;
      return p;
    }
    case PreferenceKind::kto:
    case PreferenceKind::apo_zero_unpaired:
      break;  // have single texts: kto_loss
    case PreferenceKind::orpo: {
      // A mean of 0, a text that is certain, has infinite odds.
      const double mw = std::fmin(w.policy / w.tokens, -1e-12), ml = std::fmin(l.policy / l.tokens, -1e-12);
      const double below_w = -std::expm1(mw), below_l = -std::expm1(ml);  // 1 - exp(mean)
      const double odds = mw - ml - (std::log(below_w) - std::log(below_l));
      p.chosen_reward = b * mw;
      p.rejected_reward = b * ml;
      p.loss = -b * log_sigmoid(odds);
      slope = -b * sigmoid_of(-odds);
      scale_w = 1 / (w.tokens * below_w), scale_l = 1 / (l.tokens * below_l);
      break;
    }
  }
  p.d_chosen = slope * scale_w;
  p.d_rejected = -slope * scale_l;
  return p;
}

/// KTO: 1 - sigmoid of the distance by which the reward is on the side of its label.
LT_HD inline ExampleLoss kto_loss(const PreferenceLoss& s, const TextSum& text, bool desirable) {
  ExampleLoss e;
  const double y = text.policy - text.reference, sign = desirable ? 1 : -1;
  const double weight = desirable ? s.desirable_weight : s.undesirable_weight;
  const double x = sign * s.beta * (y - s.divergence), wrong = sigmoid_of(-x);
  e.reward = s.beta * y;
  e.loss = weight * wrong;
  e.d_text = -sign * weight * s.beta * wrong * sigmoid_of(x);
  return e;
}

}  // namespace ltrain
