#include "planner/search/smallest.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

namespace ltrain {
namespace {

constexpr size_t kDegrees = 24;  // degrees whose smallest layouts are returned

/// Memory in steps of 5 %, then micro-batches.
auto size_of(const LayoutCandidate& c) {
  return std::pair(std::floor(std::log(std::max(1.0, c.bound.bytes)) / std::log(1.05)),
                   micro_batches(c.layout));
}

/// Order of what pipeline stages keep.
auto kept_by(const Layout& l) {
  return std::tuple(l.micro_batch, l.recompute != RecomputeGranularity::full, l.virtual_pipeline);
}

}  // namespace

std::vector<LayoutCandidate> smallest(std::vector<LayoutCandidate> candidates, const Recipe& recipe) {
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [](const LayoutCandidate& a, const LayoutCandidate& b) { return size_of(a) < size_of(b); });
  struct Found {
    const LayoutCandidate *first = nullptr, *small = nullptr;
  };
  std::map<std::tuple<int64_t, bool, int64_t>, Found> degrees;
  std::vector<Found*> found;
  for (const LayoutCandidate& c : candidates) {
    const Layout& l = c.layout;
    const auto at = degrees.try_emplace({l.tensor, l.sequence_parallel, l.pipeline});
    Found& f = at.first->second;
    if (at.second) f.first = &c, found.push_back(&f);
    const bool short_plan =
        recipe.model.num_hidden_layers * micro_batches(l) <= kMostOpsToChoose * l.pipeline;
    if (l.pipeline > 1 && short_plan && (!f.small || kept_by(l) < kept_by(f.small->layout))) f.small = &c;
  }
  std::vector<LayoutCandidate> out;
  for (size_t i = 0; i < std::min(found.size(), kDegrees); ++i) {
    out.push_back(*found[i]->first);
    if (found[i]->small && found[i]->small != found[i]->first) out.push_back(*found[i]->small);
  }
  return out;
}

}  // namespace ltrain
