#include "models/attention/rope_angles.h"

#include <algorithm>
#include <cmath>

namespace ltrain {
namespace {

double llama3(const RopeScaling& r, double f) {
  const double wavelength = 2 * M_PI / f, old = static_cast<double>(r.original_max_position_embeddings);
  const double low = old / r.low_freq_factor, high = old / r.high_freq_factor;
  if (wavelength > low) return f / r.factor;
  if (wavelength < high) return f;
  const double smooth = (old / wavelength - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor);
  return (1 - smooth) * f / r.factor + smooth * f;
}

/// Channels with more than beta_fast rotations within the original positions keep their frequency. Channels
/// with fewer than beta_slow rotations are stretched fully. A ramp lies between them.
struct YarnRange {
  double low = 0, high = 0;

  YarnRange(const ModelConfig& c) {
    const RopeScaling& r = c.rope_scaling;
    const double dim = static_cast<double>(c.rotary_dim());
    const auto channel = [&](double turns) {
      const double old = static_cast<double>(r.original_max_position_embeddings);
      return dim * std::log(old / (turns * 2 * M_PI)) / (2 * std::log(c.rope_theta));
    };
    low = channel(r.beta_fast);
    high = channel(r.beta_slow);
    if (r.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, dim - 1);
    if (low == high) high += 0.001;  // avoids a division by zero, like transformers
  }
  double stretched(int64_t i) const {
    return std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
  }
};

}  // namespace

std::vector<double> rope_frequencies(const ModelConfig& c, int64_t seq) {
  const RopeScaling& r = c.rope_scaling;
  const int64_t dim = c.rotary_dim();
  std::vector<double> frequency(static_cast<size_t>(dim / 2));
  for (int64_t i = 0; i < dim / 2; ++i) {
    double f = std::pow(c.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    switch (r.type) {
      case RopeType::none:
        break;
      case RopeType::linear:
        f /= r.factor;
        break;
      case RopeType::llama3:
        f = llama3(r, f);
        break;
      case RopeType::yarn: {
        const double stretched = YarnRange(c).stretched(i);
        f = stretched * f / r.factor + (1 - stretched) * f;
        break;
      }
      case RopeType::longrope:
        f /= (rope_switch(c, seq) > 0 ? r.long_factor : r.short_factor).at(static_cast<size_t>(i));
        break;
    }
    frequency[static_cast<size_t>(i)] = f;
  }
  return frequency;
}

int64_t rope_switch(const ModelConfig& c, int64_t seq) {
  const RopeScaling& r = c.rope_scaling;
  const bool switches = r.type == RopeType::longrope && seq > r.original_max_position_embeddings;
  return switches ? r.original_max_position_embeddings : 0;
}

double longrope_factor(const ModelConfig& c) {
  return std::max(1.0, static_cast<double>(c.max_position_embeddings) /
                           static_cast<double>(c.rope_scaling.original_max_position_embeddings));
}

double rope_attention_factor(const ModelConfig& c) {
  const RopeScaling& r = c.rope_scaling;
  if (r.type != RopeType::yarn && r.type != RopeType::longrope) return 1.0;
  if (r.attention_factor) return *r.attention_factor;
  if (r.type == RopeType::longrope)
    return r.factor <= 1
               ? 1.0
               : std::sqrt(1 + std::log(r.factor) /
                                   std::log(static_cast<double>(r.original_max_position_embeddings)));
  const auto of = [&](double mscale) { return yarn_mscale(r.factor, mscale); };
  // transformers treats a 0 of either as none.
  if (r.mscale.value_or(0) != 0 && r.mscale_all_dim.value_or(0) != 0)
    return of(*r.mscale) / of(*r.mscale_all_dim);
  return of(1.0);
}

ModelConfig local_rotation(const ModelConfig& c) {
  ModelConfig local = c;
  local.rope_theta = c.rope_local_base_freq;
  local.rope_scaling = {};
  return local;
}

std::vector<float> rope_angles(const ModelConfig& c, int64_t seq) {
  const std::vector<double> frequency = rope_frequencies(c, seq);
  const double factor = rope_attention_factor(c);
  std::vector<float> table;
  table.reserve(static_cast<size_t>(2 * seq) * frequency.size());
  for (int64_t t = 0; t < seq; ++t)
    for (const double f : frequency) {
      table.push_back(static_cast<float>(factor * std::cos(static_cast<double>(t) * f)));
      table.push_back(static_cast<float>(factor * std::sin(static_cast<double>(t) * f)));
    }
  return table;
}

}  // namespace ltrain
