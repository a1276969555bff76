#include "tests/support/optimizer_reference.h"

#include <algorithm>
#include <cmath>

#include "kernels/optimizer/adamw_8bit.h"

namespace ltrain::test {
namespace {

double length(const std::vector<double>& x) {
  double sum = 0;
  for (double v : x) sum += v * v;
  return std::sqrt(sum);
}

using Matrix = std::vector<std::vector<double>>;

Matrix multiply(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), std::vector<double>(b[0].size(), 0));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t k = 0; k < b.size(); ++k)
      for (size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][k] * b[k][j];
  return c;
}
Matrix transpose(const Matrix& a) {
  Matrix t(a[0].size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  return t;
}

/// Jordan's zeropower_via_newtonschulz5.
Matrix newton_schulz(Matrix x, int steps) {
  double sum = 0;
  for (const auto& r : x)
    for (double v : r) sum += v * v;
  for (auto& r : x)
    for (double& v : r) v /= std::max(std::sqrt(sum), 1e-7);
  const bool tall = x.size() > x[0].size();
  if (tall) x = transpose(x);
  for (int s = 0; s < steps; ++s) {
    const Matrix a = multiply(x, transpose(x)), aa = multiply(a, a);
    Matrix b = a;
    for (size_t i = 0; i < a.size(); ++i)
      for (size_t j = 0; j < a.size(); ++j) b[i][j] = -4.7750 * a[i][j] + 2.0315 * aa[i][j];
    const Matrix bx = multiply(b, x);
    for (size_t i = 0; i < x.size(); ++i)
      for (size_t j = 0; j < x[0].size(); ++j) x[i][j] = 3.4445 * x[i][j] + bx[i][j];
  }
  return tall ? transpose(x) : x;
}

/// Rounding of blocks of 256 elements to 8 bits.
void quantize(std::vector<double>& x, bool first) {
  for (size_t b = 0; b < x.size(); b += kCodeBlock) {
    const size_t end = std::min(x.size(), b + kCodeBlock);
    double most = 0;
    for (size_t i = b; i < end; ++i) most = std::max(most, std::abs(x[i]));
    for (size_t i = b; i < end && most > 0; ++i) {
      const float y = static_cast<float>(x[i] / most);
      x[i] = most * (first ? first_value(first_code(y)) : second_value(second_code(y)));
    }
  }
}

}  // namespace

void reference_step(ReferenceTensor& t, const std::vector<double>& gradient, const ParameterRule& rule,
                    const OptimizerSettings& o, const OptimizerStep& step) {
  const size_t n = t.w.size();
  const double lr = step.lr * rule.lr_scale,
               decay = rule.decay ? rule.weight_decay.value_or(step.weight_decay) : 0;
  std::vector<double> g = gradient;
  t.m.resize(n), t.v.resize(n);
  const double steps = static_cast<double>(step.step);
  const double c1 = 1 - std::pow(step.beta1, steps), c2 = 1 - std::pow(step.beta2, steps);
  const auto adam_moments = [&](size_t i) {
    t.m[i] = step.beta1 * t.m[i] + (1 - step.beta1) * g[i];
    t.v[i] = step.beta2 * t.v[i] + (1 - step.beta2) * g[i] * g[i];
    return t.m[i] / c1 / (std::sqrt(t.v[i] / c2) + step.eps);
  };
  switch (rule.rule) {
    case UpdateRule::frozen:
    case UpdateRule::onebit_adam:  // tests/parallel/onebit_test.cpp, where ranks have gradients of their own
    case UpdateRule::onebit_lamb:
    case UpdateRule::sophia:  // tests/models/sophia_test.cpp, where there is a model to estimate
      break;
    case UpdateRule::adamw:
    case UpdateRule::adamw8bit:
      for (size_t i = 0; i < n; ++i) t.w[i] -= lr * decay * t.w[i] + lr * adam_moments(i);
      if (rule.rule == UpdateRule::adamw8bit) quantize(t.m, true), quantize(t.v, false);
      break;
    case UpdateRule::adam:
      for (size_t i = 0; i < n; ++i) g[i] += decay * t.w[i];
      for (size_t i = 0; i < n; ++i) t.w[i] -= lr * adam_moments(i);
      break;
    case UpdateRule::sgd:
      for (size_t i = 0; i < n; ++i) {
        g[i] += decay * t.w[i];
        t.m[i] = o.sgd_momentum * t.m[i] + g[i];
        t.w[i] -= lr * (o.sgd_nesterov ? g[i] + o.sgd_momentum * t.m[i] : t.m[i]);
      }
      break;
    case UpdateRule::lion:
      for (size_t i = 0; i < n; ++i) {
        const double c = o.lion_beta1 * t.m[i] + (1 - o.lion_beta1) * g[i];
        t.w[i] -= lr * ((c > 0) - (c < 0) + decay * t.w[i]);
        t.m[i] = o.lion_beta2 * t.m[i] + (1 - o.lion_beta2) * g[i];
      }
      break;
    case UpdateRule::lamb: {
      std::vector<double> u(n);
      for (size_t i = 0; i < n; ++i) u[i] = adam_moments(i) + decay * t.w[i];
      const double a = length(t.w), b = length(u), trust = a > 0 && b > 0 ? a / b : 1;
      for (size_t i = 0; i < n; ++i) t.w[i] -= lr * trust * u[i];
      break;
    }
    case UpdateRule::adafactor: {  // torch.optim.Adafactor
      const double move = std::pow(steps, -o.adafactor_decay_rate), eps = 0x1p-52;
      const double alpha = std::max(o.adafactor_eps, length(t.w) / std::sqrt(static_cast<double>(n))) *
                           std::min(lr, 1 / std::sqrt(steps));
      for (double& w : t.w) w *= 1 - lr * decay;
      std::vector<double> v(n);
      if (t.matrix) {
        t.row.resize(t.rows), t.col.resize(t.cols);
        double mean = 0;
        for (int64_t r = 0; r < t.rows; ++r) {
          double sum = 0;
          for (int64_t c = 0; c < t.cols; ++c) sum += g[r * t.cols + c] * g[r * t.cols + c];
          t.row[r] += move * (sum / static_cast<double>(t.cols) - t.row[r]);
          mean += t.row[r] / static_cast<double>(t.rows);
        }
        for (int64_t c = 0; c < t.cols; ++c) {
          double sum = 0;
          for (int64_t r = 0; r < t.rows; ++r) sum += g[r * t.cols + c] * g[r * t.cols + c];
          t.col[c] += move * (sum / static_cast<double>(t.rows) - t.col[c]);
        }
        for (size_t i = 0; i < n; ++i) v[i] = t.row[i / t.cols] * t.col[i % t.cols] / std::max(mean, eps);
      } else {
        for (size_t i = 0; i < n; ++i) v[i] = t.v[i] += move * (g[i] * g[i] - t.v[i]);
      }
      for (size_t i = 0; i < n; ++i) g[i] /= std::sqrt(std::max(v[i], eps * eps));
      const double clip =
          std::max(1.0, length(g) / (std::sqrt(static_cast<double>(n)) * o.adafactor_clip_threshold));
      for (size_t i = 0; i < n; ++i) t.w[i] -= alpha / clip * g[i];
      break;
    }
    case UpdateRule::muon: {
      for (double& w : t.w) w *= 1 - lr * decay;
      for (size_t i = 0; i < n; ++i) t.m[i] += (1 - o.muon_momentum) * (g[i] - t.m[i]);
      const double rows = static_cast<double>(t.rows), cols = static_cast<double>(t.cols);
      const double scale = o.muon_scale == MuonScale::match_rms_adamw ? 0.2 * std::sqrt(std::max(rows, cols))
                                                                      : std::sqrt(std::max(1.0, rows / cols));
      Matrix x(t.rows, std::vector<double>(t.cols));
      for (size_t i = 0; i < n; ++i)
        x[i / t.cols][i % t.cols] = (1 - o.muon_momentum) * g[i] + o.muon_momentum * t.m[i];
      x = newton_schulz(std::move(x), static_cast<int>(o.muon_num_ns_steps));
      for (size_t i = 0; i < n; ++i) t.w[i] -= lr * scale * x[i / t.cols][i % t.cols];
      break;
    }
  }
}

}  // namespace ltrain::test
