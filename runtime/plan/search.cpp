#include "runtime/plan/search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>

#include "kernels/base/error.h"
#include "runtime/launch/cgroup.h"
#include "runtime/plan/rank_map.h"

namespace ltrain {
namespace {

constexpr double kSlack = 1.15;     // an estimate so far above the memory may fit all the same
constexpr size_t kPlansAShown = 2;  // layouts that are planned for each that is shown
constexpr size_t kMostPlans = 96;
constexpr size_t kFrontPlans = 8;    // of the front of estimates
constexpr double kFrontStep = 0.9;   // each of them needs at most so much of what the one before does
constexpr int kMostWorld = 1 << 18;  // that is looked at for a layout that fits

struct Ranked {
  Layout layout;
  Estimate estimate;
  double speed() const { return static_cast<double>(layout.global_batch) / estimate.step_seconds; }
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Search {
 public:
  Search(const LoadRecipe& load, const MachineProfile& profile, const SearchLimits& limits)
      : load_(load), recipe_(load({})), profile_(profile), limits_(limits) {}

  SearchResult run(size_t count) {
    const auto start = std::chrono::steady_clock::now();
    SearchResult result;
    std::vector<Ranked> ranked = rank(result);
    result.ranking_seconds = seconds_since(start);
    const double most = memory() * kSlack;
    const auto over = std::stable_partition(ranked.begin(), ranked.end(),
                                            [&](const Ranked& r) { return r.estimate.bytes <= most; });
    std::vector<Ranked> rest(over, ranked.end());
    ranked.erase(over, ranked.end());
    result.estimated_to_fit = static_cast<int64_t>(ranked.size());
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const Ranked& a, const Ranked& b) { return a.speed() > b.speed(); });
    std::vector<FoundLayout> fitting;
    size_t next = 0;
    while (next < std::min(ranked.size(), kMostPlans) &&
           (fitting.size() < count || next < kPlansAShown * count)) {
      const size_t end = std::min(ranked.size(), next + std::max<size_t>(count, 4));
      plan({ranked.begin() + static_cast<std::ptrdiff_t>(next),
            ranked.begin() + static_cast<std::ptrdiff_t>(end)},
           result, fitting);
      next = end;
    }
    if (fitting.empty() && ranked.size() > next) plan(smallest(ranked, kFrontPlans), result, fitting);
    if (fitting.empty()) {
      ranked.insert(ranked.end(), rest.begin(), rest.end());
      advise(ranked, result);
      result.seconds = seconds_since(start);
      return result;
    }
    ranked.erase(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(next));
    plan(front(ranked), result, fitting);
    sort(fitting);
    result.pareto = front(fitting);
    if (fitting.size() > count) fitting.resize(count);
    result.found = std::move(fitting);
    result.seconds = seconds_since(start);
    return result;
  }

 private:
  std::vector<Ranked> rank(SearchResult& result) const {
    std::vector<Ranked> out;
    Estimator estimator(recipe_, profile_, limits_);
    result.looked_at = for_each_layout(recipe_, limits_, [&](const Layout& l) {
      out.push_back({l, estimator.of(l)});
    });
    result.allowed = static_cast<int64_t>(out.size());
    return out;
  }

  /// Of a rank.
  double memory() const {
    const bool card = profile_.device_bytes > 0;
    const int64_t bytes = card ? profile_.device_bytes - limits_.keep_free
                               : (host_memory_bytes() - limits_.keep_free) / limits_.ranks_per_node;
    return static_cast<double>(bytes);
  }

  FoundLayout plan_of(const Ranked& r) const {
    FoundLayout f{r.layout, settings_of(r.layout, recipe_), r.estimate, {}};
    std::vector<std::string> overrides;
    for (const auto& [key, value] : f.settings) overrides.push_back(key + "=" + value);
    const Recipe recipe = resolve(load_(overrides), limits_.world, limits_.ranks_per_node);
    f.plan = make_plan(recipe, profile_);
    return f;
  }

  std::vector<FoundLayout> plans_of(const std::vector<Ranked>& of) const {
    std::vector<FoundLayout> out(of.size());
    std::atomic<size_t> next = 0;
    const auto work = [&] {
      for (size_t i = next++; i < of.size(); i = next++) out[i] = plan_of(of[i]);
    };
    std::vector<std::future<void>> workers;
    for (int i = 1; i < usable_cores(); ++i) workers.push_back(std::async(std::launch::async, work));
    work();
    for (auto& w : workers) w.get();
    return out;
  }

  void plan(const std::vector<Ranked>& of, SearchResult& result, std::vector<FoundLayout>& fitting) const {
    for (FoundLayout& f : plans_of(of)) {
      ++result.planned;
      if (fits_with(f.plan, limits_.keep_free)) fitting.push_back(std::move(f));
    }
  }

  static void sort(std::vector<FoundLayout>& found) {
    std::stable_sort(found.begin(), found.end(), [](const FoundLayout& a, const FoundLayout& b) {
      if (a.plan.tokens_per_second() != b.plan.tokens_per_second())
        return a.plan.tokens_per_second() > b.plan.tokens_per_second();
      return a.largest().total_bytes < b.largest().total_bytes;
    });
  }

  /// `ranked` is by speed: each that needs less than all before it.
  static std::vector<Ranked> front(const std::vector<Ranked>& ranked) {
    std::vector<Ranked> out;
    for (const Ranked& r : ranked)
      if (out.empty() || r.estimate.bytes < kFrontStep * out.back().estimate.bytes) {
        if (out.size() == kFrontPlans) break;
        out.push_back(r);
      }
    return out;
  }
  static std::vector<FoundLayout> front(const std::vector<FoundLayout>& sorted) {
    std::vector<FoundLayout> out;
    for (const FoundLayout& f : sorted)
      if (out.empty() || f.largest().total_bytes < out.back().largest().total_bytes) out.push_back(f);
    return out;
  }

  static std::vector<Ranked> smallest(std::vector<Ranked> ranked, size_t count) {
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const Ranked& a, const Ranked& b) { return a.estimate.bytes < b.estimate.bytes; });
    ranked.resize(std::min(ranked.size(), count));
    return ranked;
  }

  /// The least that these ranks come to, and how many would do.
  void advise(const std::vector<Ranked>& ranked, SearchResult& result) const {
    if (ranked.empty()) return;
    std::vector<FoundLayout> least = plans_of(smallest(ranked, kFrontPlans));
    result.planned += static_cast<int64_t>(least.size());
    std::stable_sort(least.begin(), least.end(), [](const FoundLayout& a, const FoundLayout& b) {
      return a.largest().total_bytes < b.largest().total_bytes;
    });
    least.resize(1);
    result.advice.smallest = std::move(least);
    for (int world = 2 * limits_.world; world <= kMostWorld; world *= 2) {
      SearchLimits more = limits_;
      more.world = world;
      more.ranks_per_node = nodes_of(world);
      const Search larger(load_, profile_, more);
      SearchResult ignored;
      const std::vector<Ranked> others = larger.rank(ignored);
      for (const FoundLayout& f : larger.plans_of(smallest(others, kFrontPlans)))
        if (fits_with(f.plan, limits_.keep_free)) {
          result.advice.fitting_world = world;
          return;
        }
    }
  }

  int nodes_of(int world) const {
    const AssumedNode node = assumed_node(profile_, world, 0);
    const bool known = limits_.ranks_per_node < limits_.world || node.cards == 0;
    return known ? limits_.ranks_per_node : node.cards;
  }

  const LoadRecipe& load_;
  Recipe recipe_;
  const MachineProfile& profile_;
  SearchLimits limits_;
};

}  // namespace

const RankPlan& FoundLayout::largest() const {
  return *std::max_element(plan.ranks.begin(), plan.ranks.end(), [](const RankPlan& a, const RankPlan& b) {
    return a.total_bytes < b.total_bytes;
  });
}

double FoundLayout::exposed_seconds() const {
  double most = 0;
  for (const RankPlan& r : plan.ranks) most = std::max(most, r.exposed_comm_seconds());
  return most;
}

bool fits_with(const Plan& plan, int64_t keep_free) {
  for (MemoryLimit limit : memory_limits(plan)) {
    limit.available_bytes -= keep_free;
    if (!limit.fits()) return false;
  }
  return true;
}

SearchResult search_layouts(const LoadRecipe& load, const MachineProfile& profile, const SearchLimits& limits,
                            size_t count) {
  return Search(load, profile, limits).run(count);
}

}  // namespace ltrain
