#include "runtime/data/packer.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"

namespace ltrain::data {

bool Packer::add(int64_t tokens) {
  LT_CHECK(tokens >= 1 && tokens <= length_, "expected a document of 1 to {} tokens, got {}", length_,
           tokens);
  sizes_.push_back(tokens);
  return documents() >= window_;
}

void Packer::flush(const Emit& emit) {
  std::vector<int64_t> order(sizes_.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return sizes_[a] > sizes_[b]; });
  std::vector<std::vector<int64_t>> samples;
  std::set<std::pair<int64_t, size_t>> room;  // tokens left, and the sample
  for (const int64_t document : order) {
    const int64_t tokens = sizes_[document];
    auto best = room.lower_bound({tokens, 0});
    if (best == room.end()) {
      samples.emplace_back();
      best = room.emplace(length_, samples.size() - 1).first;
    }
    const auto [left, sample] = *best;
    room.erase(best);
    samples[sample].push_back(document);
    if (left > tokens) room.emplace(left - tokens, sample);
  }
  for (const std::vector<int64_t>& sample : samples) emit(sample);
  sizes_.clear();
}

}  // namespace ltrain::data
