// Tokens of global sample g as a pure function of (seed, g), in constant time and memory, so that training
// can start at any sample and on any number of ranks.
//
// A source of N tokens has n = (N - 1) / seq_length samples. Sample i is the tokens [i*L, i*L + L + 1); its
// last token is also the first of the next sample. Draw j of a source is sample P(j mod n) of epoch j / n. P
// is a permutation of 0..n-1 keyed by (seed, source, epoch). The blend selects the source of each global
// sample.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/hash/mix64.h"

namespace ltrain::data {

constexpr size_t kMaxSources = 1024;  ///< sources of one mix

/// A keyed bijection of 0..size-1: a Feistel network on the next power of two, iterated until the result is
/// below `size`.
class Permutation {
 public:
  Permutation(int64_t size, uint64_t key);
  int64_t operator()(int64_t index) const;

 private:
  uint64_t size_, keys_[8];
  int low_bits_, high_bits_;
};

/// Interleaves sources by weight. Weights are rounded to whole draws per period of at most 65536 samples,
/// exactly if such a period exists: 0.7/0.3 has period 10. Within a period, sample i takes the source d with
/// the largest w_d*max(i,1) - count_d among those with draws left; the first of equals wins. All periods are
/// the same.
class Blend {
 public:
  explicit Blend(const std::vector<double>& weights);

  struct Draw {
    int source = 0;
    int64_t index = 0;  ///< number of earlier samples of this source
  };
  Draw operator()(int64_t sample) const;
  /// Global sample at which `source` gives its draw `index`.
  int64_t find(int source, int64_t index) const;

  /// Samples of `source` among the first `samples`.
  int64_t draws_before(int source, int64_t samples) const;

  int64_t period() const { return static_cast<int64_t>(source_.size()); }
  int64_t draws_per_period(int source) const { return per_period_[source]; }
  int64_t memory_bytes() const { return period() * 6; }

 private:
  std::vector<int64_t> per_period_;
  std::vector<uint16_t> source_;  // source of each sample of the period
  std::vector<uint32_t> before_;  // earlier samples of the same source in the period
};

struct SampleRef {
  int source = 0;
  int64_t epoch = 0;   ///< epoch of this source
  int64_t sample = 0;  ///< sample of this source: first token = sample * seq_length
};

/// Samples that are shuffled together: a window of an epoch of a source.
struct ShuffledPart {
  int source = 0;
  int64_t epoch = 0, window = 0;
};
/// Sample that comes at `place` of a part of `samples` samples.
int64_t shuffled(int64_t place, int64_t samples, const ShuffledPart& part, uint64_t seed, bool shuffle);

/// Sample of draw `draw` of a source with `samples` samples.
SampleRef drawn_sample(int source, int64_t draw, int64_t samples, uint64_t seed, bool shuffle);

class SampleOrder {
 public:
  /// `samples`: per source, each at least 1.
  SampleOrder(std::vector<int64_t> samples, const std::vector<double>& weights, uint64_t seed,
              bool shuffle = true);

  SampleRef operator()(int64_t global_sample) const;

  const Blend& blend() const { return blend_; }
  /// Global samples before the first source begins its second epoch.
  int64_t before_first_repeat() const;

 private:
  std::vector<int64_t> samples_;
  Blend blend_;
  uint64_t seed_;
  bool shuffle_;
};

}  // namespace ltrain::data
