#include "runtime/data/window_order.h"

#include <algorithm>

#include "base/error.h"
#include "runtime/data/sample_order.h"

namespace ltrain::data {

WindowOrder::WindowOrder(int source, int64_t files, int64_t window, uint64_t seed, bool shuffle)
    : source_(source),
      files_(files),
      window_(window > 0 ? std::min(window, files) : files),
      seed_(seed),
      shuffle_(shuffle) {
  LT_CHECK(files > 0 && window >= 0, "expected files and a window of at least 0, got {} files and window {}",
           files, window);
}

void WindowOrder::add(int64_t samples) {
  LT_CHECK(!knows_all() && samples >= 0, "expected samples of one of {} files, got {} for number {}", files_,
           samples, known_files());
  before_.push_back(before_.back() + samples);
}

std::optional<WindowOrder::Place> WindowOrder::find(int64_t draw) const {
  LT_CHECK(draw >= 0, "expected a draw of at least 0, got {}", draw);
  Place p;
  int64_t in_epoch = draw;
  if (knows_all()) {
    LT_CHECK(known_samples() > 0, "expected at least 1 sample in a source, got {}", known_samples());
    p.epoch = draw / known_samples(), in_epoch = draw % known_samples();
  }
  const auto file_of = [&](int64_t sample) {
    return std::upper_bound(before_.begin(), before_.end(), sample) - before_.begin() - 1;
  };
  const int64_t file = file_of(in_epoch);
  if (file >= known_files()) return std::nullopt;
  const int64_t number = file / window_, first = number * window_, end = std::min(first + window_, files_);
  if (end > known_files()) return std::nullopt;
  const int64_t begin = before_[static_cast<size_t>(first)];
  const int64_t samples = before_[static_cast<size_t>(end)] - begin;
  p.in_source = begin + shuffled(in_epoch - begin, samples, {source_, p.epoch, number}, seed_, shuffle_);
  p.file = file_of(p.in_source);
  p.sample = p.in_source - before_[static_cast<size_t>(p.file)];
  return p;
}

}  // namespace ltrain::data
