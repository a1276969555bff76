#include "runtime/program/lr_schedule.h"

#include <algorithm>
#include <cmath>

namespace ltrain {

double learning_rate(const OptimizerKeys& o, const LrSchedule& s, int64_t step) {
  const double warmup = static_cast<double>(s.lr_warmup_steps), t = static_cast<double>(step);
  if (warmup > 0 && t <= warmup) return o.lr * t / warmup;
  if (s.lr_decay_style == LrDecayStyle::constant) return o.lr;
  const double end = static_cast<double>(s.lr_decay_steps);
  if (t > end) return o.min_lr;
  if (s.lr_decay_style == LrDecayStyle::inverse_square_root)
    return std::max(o.min_lr, o.lr * std::sqrt(std::max(warmup, 1.0)) / std::sqrt(t));
  const auto shape = [](LrDecayStyle style, double done) {  // 1 at done = 0, 0 at done = 1
    return style == LrDecayStyle::cosine ? 0.5 * (1 + std::cos(M_PI * done)) : 1 - done;
  };
  double rest;
  if (s.lr_decay_style == LrDecayStyle::wsd) {
    const double length = static_cast<double>(s.lr_wsd_decay_steps), begin = end - length;
    rest = t <= begin || length <= 0 ? 1 : shape(s.lr_wsd_decay_style, (t - begin) / length);
  } else {
    double done = end > warmup ? (t - warmup) / (end - warmup) : 1;
    // The first step of each later cycle is one past its start, like the first step after the warm-up.
    if (done < 1 && s.lr_num_cycles > 1) {
      const double cycles = done * static_cast<double>(s.lr_num_cycles), whole = std::ceil(cycles) - 1;
      done = cycles - std::max(0.0, whole);
    }
    rest = shape(s.lr_decay_style, done);
  }
  return o.min_lr + (o.lr - o.min_lr) * rest;
}

double weight_decay(const OptimizerKeys& o, const LrSchedule& s, int64_t step, int64_t steps) {
  if (s.weight_decay_incr_style == WeightDecayStyle::constant) return o.weight_decay;
  const double start = s.start_weight_decay.value_or(o.weight_decay),
               end = s.end_weight_decay.value_or(o.weight_decay);
  const double done =
      steps > 1 ? std::min(1.0, static_cast<double>(step - 1) / static_cast<double>(steps - 1)) : 1;
  return start + (end - start) * (s.weight_decay_incr_style == WeightDecayStyle::cosine
                                      ? 0.5 * (1 - std::cos(M_PI * done))
                                      : done);
}

OptimizerStep optimizer_step(const Recipe& r, int64_t update, int64_t earlier) {
  OptimizerStep a;
  a.lr = learning_rate(r.optimizer, r.schedule, update);
  a.beta1 = r.optimizer.adam_beta1;
  a.beta2 = r.optimizer.adam_beta2;
  a.eps = r.optimizer.adam_eps;
  a.weight_decay = weight_decay(r.optimizer, r.schedule, update, r.train.train_steps);
  a.step = earlier + update;
  return a;
}

}  // namespace ltrain
