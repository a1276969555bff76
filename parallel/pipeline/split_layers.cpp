#include "parallel/pipeline/split_layers.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace ltrain::pipeline {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Cost of layers [begin, end) as stage `s`.
class Costs {
 public:
  Costs(const std::vector<double>& layers, double first, double last, int stages)
      : first_(first), last_(last), stages_(stages), sum_(layers.size() + 1) {
    for (size_t i = 0; i < layers.size(); ++i) sum_[i + 1] = sum_[i] + layers[i];
  }
  double stage(int s, int begin, int end) const {
    return sum_[end] - sum_[begin] + (s == 0 ? first_ : 0) + (s == stages_ - 1 ? last_ : 0);
  }

 private:
  double first_, last_;
  int stages_;
  std::vector<double> sum_;
};

/// Least possible cost of the most expensive stage.
double least_maximum(const Costs& c, int layers, int stages) {
  // best[j]: cost of the first s + 1 stages over the first j layers.
  std::vector<double> best(layers + 1, kNever), next(layers + 1);
  for (int j = 1; j <= layers; ++j) best[j] = c.stage(0, 0, j);
  for (int s = 1; s < stages; ++s) {
    std::fill(next.begin(), next.end(), kNever);
    // best[i] rises with i and the stage's cost falls: the maximum is least where they cross, which never
    // moves back for a later j. Each later stage needs a layer.
    for (int j = s + 1, cross = s; j <= layers - (stages - 1 - s); ++j) {
      while (cross < j - 1 && best[cross] < c.stage(s, cross, j)) ++cross;
      next[j] = std::max(best[cross], c.stage(s, cross, j));
      if (cross > s) next[j] = std::min(next[j], std::max(best[cross - 1], c.stage(s, cross - 1, j)));
    }
    best.swap(next);
  }
  return best[layers];
}

}  // namespace

std::vector<int> split_layers(const std::vector<double>& layer_costs, double first, double last, int stages) {
  const int layers = static_cast<int>(layer_costs.size());
  if (stages < 1 || stages > layers)
    fail(ExitCode::usage, "{} layers make at least 1 and at most {} pipeline stages, and {} are asked for",
         layers, layers, stages);
  for (double cost : layer_costs)
    LT_CHECK(cost >= 0 && cost < 1e300, "expected finite layer costs >= 0, got {}", cost);
  LT_CHECK(first >= 0 && last >= 0, "expected extra costs >= 0, got {} and {}", first, last);
  const Costs c(layer_costs, first, last, stages);
  // Sums in a different order round differently.
  const double limit = least_maximum(c, layers, stages) * (1 + 1e-12);

  // Second pass, for the least sum of squares under that limit. Stage s ends at s + 1 + k, for k below
  // `width`, so that every stage has a layer; from[s][k]: begin of the stage.
  const int width = layers - stages + 1;
  std::vector<double> best(layers + 1, kNever), next(layers + 1);
  std::vector<std::vector<int>> from(stages, std::vector<int>(width, -1));
  best[0] = 0;
  for (int s = 0; s < stages; ++s) {
    std::fill(next.begin(), next.end(), kNever);
    for (int k = 0; k < width; ++k) {
      const int j = s + 1 + k;
      for (int i = j - 1; i >= s; --i) {
        const double cost = c.stage(s, i, j);
        if (cost > limit) break;  // a longer stage costs more
        if (best[i] == kNever) continue;
        const double sum = best[i] + cost * cost;
        if (sum > next[j] * (1 + 1e-12)) continue;
        next[j] = std::min(next[j], sum);
        from[s][k] = i;
      }
    }
    best.swap(next);
  }
  LT_CHECK(best[layers] < kNever,
           "expected a split of {} layers into {} stages with costs up to {}, got none", layers, stages,
           limit);
  std::vector<int> counts(stages);
  for (int s = stages - 1, j = layers; s >= 0; --s) {
    const int i = from[s][j - s - 1];
    counts[s] = j - i;
    j = i;
  }
  return counts;
}

std::vector<int> balance_ranks(const std::vector<double>& layer_costs, double first, double last,
                               std::vector<int> counts, const std::vector<int>& rank_of_stage) {
  const int stages = static_cast<int>(counts.size());
  LT_CHECK(rank_of_stage.size() == counts.size(), "expected ranks for {} stages, got {}", stages,
           rank_of_stage.size());
  const int ranks = *std::max_element(rank_of_stage.begin(), rank_of_stage.end()) + 1;
  if (ranks == stages) return counts;
  const Costs costs(layer_costs, first, last, stages);
  std::vector<double> of_rank(ranks);
  std::vector<int> begin(stages + 1);
  /// Maximum over ranks, and sum of squares, if stage `to` has a layer more and `from` one less: each
  /// boundary between them moves by one.
  const auto value = [&](int from, int to) {
    std::fill(of_rank.begin(), of_rank.end(), 0);
    const auto at = [&](int boundary) {
      const bool later = to < boundary && boundary <= from, earlier = from < boundary && boundary <= to;
      return begin[boundary] + (later ? 1 : 0) - (earlier ? 1 : 0);
    };
    for (int s = 0; s < stages; ++s) of_rank[rank_of_stage[s]] += costs.stage(s, at(s), at(s + 1));
    double most = 0, squares = 0;
    for (double x : of_rank) most = std::max(most, x), squares += x * x;
    return std::pair(most, squares);
  };
  const auto better = [](const std::pair<double, double>& a, const std::pair<double, double>& b) {
    if (a.first < b.first * (1 - 1e-9)) return true;
    return a.first <= b.first * (1 + 1e-9) && a.second < b.second * (1 - 1e-9);
  };
  // The first layer stays in the first stage and the last one in the last, so that their costs may differ.
  const bool few = layer_costs.size() < 3;
  const auto [cheapest, dearest] =
      std::minmax_element(layer_costs.begin() + (few ? 0 : 1), layer_costs.end() - (few ? 0 : 1));
  const bool alike = *dearest - *cheapest <= 1e-12 * *dearest;
  for (bool moved = true; moved;) {
    moved = false;
    std::partial_sum(counts.begin(), counts.end(), begin.begin() + 1);
    auto best = value(0, 0);
    const std::vector<double> now = of_rank;
    std::pair<int, int> move;
    const auto look = [&](int from, int to, const std::pair<double, double>& v) {
      if (better(v, best)) best = v, move = {from, to}, moved = true;
    };
    if (alike) {
      // A move from the fullest rank that may give a layer to the emptiest leaves the least maximum and the
      // least squares of all moves. The choice among a rank's stages does not matter: the first ones are
      // used.
      int from = -1, to = -1;
      for (int s = 0; s < stages; ++s) {
        const double of = now[rank_of_stage[s]];
        if (counts[s] > 1 && (from < 0 || of > now[rank_of_stage[from]] * (1 + 1e-11))) from = s;
        if (to < 0 || of < now[rank_of_stage[to]] * (1 - 1e-11)) to = s;
      }
      // A move gains only if the receiving rank stays below the giving rank's old cost.
      if (from >= 0) {
        const int giver = rank_of_stage[from], taker = rank_of_stage[to];
        if (now[taker] + *dearest < now[giver] * (1 - 1e-11)) look(from, to, value(from, to));
      }
    } else {
      for (int from = 0; from < stages; ++from)
        for (int to = 0; to < stages; ++to)
          if (from != to && counts[from] > 1) look(from, to, value(from, to));
    }
    if (moved) --counts[move.first], ++counts[move.second];
  }
  return counts;
}

std::string split_rule(const std::vector<int64_t>& counts, int64_t layers, int64_t stages) {
  if (static_cast<int64_t>(counts.size()) != stages)
    return fmt::format("has {} numbers, and there are {} stages; give one for each", counts.size(), stages);
  int64_t sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 1 || counts[i] > layers)
      return fmt::format("gives stage {} {} layers; every stage needs at least 1 of the {}", i, counts[i],
                         layers);
    sum += counts[i];
  }
  if (sum != layers)
    return fmt::format("makes {} layers in all, and the model has {}; {} {}", sum, layers,
                       sum < layers ? "add" : "take away", sum < layers ? layers - sum : sum - layers);
  return "";
}

std::vector<double> stage_sums(const std::vector<double>& layer_costs, double first, double last,
                               const std::vector<int>& counts) {
  std::vector<double> sums;
  size_t at = 0;
  for (int n : counts) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += layer_costs.at(at++);
    sums.push_back(sum);
  }
  LT_CHECK(at == layer_costs.size() && !sums.empty(),
           "expected stages for all {} layers, got {} layers in stages", layer_costs.size(), at);
  sums.front() += first;
  sums.back() += last;
  return sums;
}

}  // namespace ltrain::pipeline
