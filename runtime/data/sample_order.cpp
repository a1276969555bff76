#include "runtime/data/sample_order.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace ltrain::data {
namespace {

constexpr int64_t kMaxPeriod = 65536;
constexpr int kRounds = 8;

/// Draws per period for each weight. Each is at least 1, and their sum is the period.
std::vector<int64_t> whole_draws(const std::vector<double>& weights) {
  double sum = 0;
  for (double w : weights) {
    if (!(w > 0) || !std::isfinite(w))
      fail(ExitCode::usage, "source weight {}: it must be a number above 0", w);
    sum += w;
  }
  const size_t n = weights.size();
  if (n == 0 || n > kMaxSources)
    fail(ExitCode::usage, "{} data sources: 1 to {} are possible", n, kMaxSources);
  std::vector<int64_t> draws(n);
  for (int64_t period = static_cast<int64_t>(n); period <= kMaxPeriod; ++period) {
    bool exact = true;
    int64_t total = 0;
    for (size_t d = 0; d < n && exact; ++d) {
      const double want = weights[d] / sum * period;
      draws[d] = std::llround(want);
      exact = draws[d] >= 1 && std::abs(want - draws[d]) < 1e-9 * period;
      total += draws[d];
    }
    if (exact && total == period) return draws;
  }
  // No exact period: use the longest one, round down, and give the remaining draws to the largest remainders.
  std::vector<std::pair<double, size_t>> rest(n);
  int64_t total = 0;
  for (size_t d = 0; d < n; ++d) {
    const double want = weights[d] / sum * kMaxPeriod;
    draws[d] = std::max<int64_t>(1, static_cast<int64_t>(want));
    rest[d] = {draws[d] - want, d};
    total += draws[d];
  }
  std::sort(rest.begin(), rest.end());
  for (size_t i = 0; total < kMaxPeriod; i = (i + 1) % n, ++total) ++draws[rest[i].second];
  // Weights far below 1/65536 were raised to one draw, which the largest sources give up.
  while (total > kMaxPeriod) {
    --*std::max_element(draws.begin(), draws.end());
    --total;
  }
  return draws;
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t key) : size_(static_cast<uint64_t>(size)) {
  LT_CHECK(size > 0, "expected a permutation of at least 1 element, got {}", size);
  const int bits = std::max(2, static_cast<int>(std::bit_width(size_ - 1)));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
  for (int r = 0; r < kRounds; ++r) keys_[r] = mix64(key + 0x632be59bd9b4e019ull * (r + 1));
}

int64_t Permutation::operator()(int64_t index) const {
  LT_CHECK(index >= 0 && static_cast<uint64_t>(index) < size_, "expected an index below {}, got {}", size_,
           index);
  uint64_t x = static_cast<uint64_t>(index);
  const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1, high_mask = (uint64_t{1} << high_bits_) - 1;
  // The network permutes 0 .. 2^bits - 1, fewer than twice `size` values. The cycle through `index` returns
  // below `size` after less than two iterations on average, and maps each index to a different value.
  do {
    uint64_t low = x & low_mask, high = x >> low_bits_;
    for (int r = 0; r < kRounds; r += 2) {
      low ^= mix64(high ^ keys_[r]) & low_mask;
      high ^= mix64(low ^ keys_[r + 1]) & high_mask;
    }
    x = high << low_bits_ | low;
  } while (x >= size_);
  return static_cast<int64_t>(x);
}

Blend::Blend(const std::vector<double>& weights) : per_period_(whole_draws(weights)) {
  int64_t period = 0;
  for (int64_t d : per_period_) period += d;
  std::vector<int64_t> count(per_period_.size());
  source_.resize(period);
  before_.resize(period);
  for (int64_t i = 0; i < period; ++i) {
    int best = -1;
    int64_t lead = 0;  // (w_d * max(i,1) - count_d) * period, in integers, so that no rounding creates ties
    for (size_t d = 0; d < per_period_.size(); ++d) {
      if (count[d] == per_period_[d]) continue;
      const int64_t v = per_period_[d] * std::max<int64_t>(i, 1) - count[d] * period;
      if (best < 0 || v > lead) {
        best = static_cast<int>(d);
        lead = v;
      }
    }
    source_[i] = static_cast<uint16_t>(best);
    before_[i] = static_cast<uint32_t>(count[best]++);
  }
}

Blend::Draw Blend::operator()(int64_t sample) const {
  LT_CHECK(sample >= 0, "expected a sample of at least 0, got {}", sample);
  const int64_t turn = sample / period(), place = sample % period();
  const int source = source_[place];
  return {source, turn * per_period_[source] + before_[place]};
}

int64_t Blend::find(int source, int64_t index) const {
  const int64_t turn = index / per_period_[source], left = index % per_period_[source];
  for (int64_t i = 0; i < period(); ++i)
    if (source_[i] == source && before_[i] == left) return turn * period() + i;
  LT_CHECK(false, "expected draw {} of source {} in a period, got none", left, source);
  return -1;
}

int64_t Blend::draws_before(int source, int64_t samples) const {
  int64_t draws = samples / period() * per_period_[source];
  for (int64_t i = 0; i < samples % period(); ++i) draws += source_[i] == source;
  return draws;
}

int64_t shuffled(int64_t place, int64_t samples, const ShuffledPart& part, uint64_t seed, bool shuffle) {
  if (!shuffle) return place;
  uint64_t key =
      mix64(mix64(mix64(seed) ^ static_cast<uint64_t>(part.source)) ^ static_cast<uint64_t>(part.epoch));
  if (part.window > 0) key = mix64(key ^ static_cast<uint64_t>(part.window));
  return Permutation(samples, key)(place);
}

SampleRef drawn_sample(int source, int64_t draw, int64_t samples, uint64_t seed, bool shuffle) {
  const int64_t epoch = draw / samples;
  return {source, epoch, shuffled(draw % samples, samples, {source, epoch, 0}, seed, shuffle)};
}

SampleOrder::SampleOrder(std::vector<int64_t> samples, const std::vector<double>& weights, uint64_t seed,
                         bool shuffle)
    : samples_(std::move(samples)), blend_(weights), seed_(seed), shuffle_(shuffle) {
  LT_CHECK(samples_.size() == weights.size(), "expected a weight for each of {} sources, got {}",
           samples_.size(), weights.size());
  for (int64_t n : samples_) LT_CHECK(n > 0, "expected at least 1 sample in a source, got {}", n);
}

SampleRef SampleOrder::operator()(int64_t global_sample) const {
  const Blend::Draw draw = blend_(global_sample);
  return drawn_sample(draw.source, draw.index, samples_[draw.source], seed_, shuffle_);
}

int64_t SampleOrder::before_first_repeat() const {
  int64_t first = INT64_MAX;
  for (size_t d = 0; d < samples_.size(); ++d)
    first = std::min(first, blend_.find(static_cast<int>(d), samples_[d]));
  return first;
}

}  // namespace ltrain::data
