#include "runtime/train/lr_schedule.h"

#include <algorithm>
#include <cmath>

namespace ltrain {

double learning_rate(const Optimizer& o, const Schedule& s, int64_t step) {
  const double warmup = static_cast<double>(s.lr_warmup_steps), t = static_cast<double>(step);
  if (warmup > 0 && t <= warmup) return o.lr * t / warmup;
  if (s.lr_decay_style == LrDecayStyle::constant) return o.lr;
  if (s.lr_decay_style == LrDecayStyle::inverse_square_root)
    return std::max(o.min_lr, o.lr * std::sqrt(std::max(warmup, 1.0)) / std::sqrt(t));
  const double end = static_cast<double>(s.lr_decay_steps);
  if (t > end) return o.min_lr;
  const auto shape = [](LrDecayStyle style, double done) {  // 1 at done = 0, 0 at done = 1
    return style == LrDecayStyle::cosine ? 0.5 * (1 + std::cos(M_PI * done)) : 1 - done;
  };
  double rest;
  if (s.lr_decay_style == LrDecayStyle::wsd) {
    const double length = static_cast<double>(s.lr_wsd_decay_steps), begin = end - length;
    rest = t <= begin || length <= 0 ? 1 : shape(s.lr_wsd_decay_style, (t - begin) / length);
  } else {
    rest = shape(s.lr_decay_style, end > warmup ? (t - warmup) / (end - warmup) : 1);
  }
  return o.min_lr + (o.lr - o.min_lr) * rest;
}

}  // namespace ltrain
