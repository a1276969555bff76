#include "planner/search/search.h"

#include <algorithm>

#include "planner/search/advice.h"
#include "planner/search/candidate.h"
#include "planner/search/found_layouts.h"
#include "planner/search/refine.h"
#include "planner/search/trials.h"

namespace ltrain {
namespace {

constexpr size_t kFrontTrials = 8;  // trials of the Pareto front of bounds
// Memory of each layout on the front, relative to the previous one.
constexpr double kFrontStep = 0.9;

/// Pareto front by bounds, fastest first: each needs less memory than all before it.
std::vector<LayoutCandidate> front_of_bounds(std::vector<LayoutCandidate> open) {
  std::sort(open.begin(), open.end(), faster_by_bound);
  std::vector<LayoutCandidate> out;
  for (const LayoutCandidate& c : open)
    if (out.empty() || c.bound.bytes < kFrontStep * out.back().bound.bytes) {
      if (out.size() == kFrontTrials) break;
      out.push_back(c);
    }
  return out;
}

/// Pareto front by trials. `fitting`: fastest first.
std::vector<LayoutCandidate> front_of_trials(const std::vector<LayoutCandidate>& fitting) {
  std::vector<LayoutCandidate> out;
  for (const LayoutCandidate& c : fitting)
    if (out.empty() || c.trial.bytes < out.back().trial.bytes) out.push_back(c);
  return out;
}

/// Sorts the layouts about as fast as the first by their memory. `found`: fastest first.
void smaller_of_ties(std::vector<FoundLayout>& found, double tie) {
  if (found.empty() || tie <= 0) return;
  const double least = (1 - tie) * found.front().tokens_per_second_per_rank();
  const auto end = std::find_if(found.begin(), found.end(),
                                [&](const FoundLayout& f) { return f.tokens_per_second_per_rank() < least; });
  std::stable_sort(found.begin(), end, [](const FoundLayout& a, const FoundLayout& b) {
    return a.largest().total_bytes < b.largest().total_bytes;
  });
}

/// Tries the candidates that may be among the `count` fastest, and the front of the others; counts the rest.
std::vector<LayoutCandidate> try_candidates(Trials& trials, std::vector<LayoutCandidate> open, size_t count,
                                            int64_t most_trials, SearchResult& result) {
  std::vector<LayoutCandidate> fitting;
  trials.try_fastest(open, count, most_trials, fitting);
  const double last = last_speed(fitting, count);
  const std::vector<LayoutCandidate> front = front_of_bounds(open);
  const auto may_be_faster = [&](const LayoutCandidate& c) { return !(c.bound_speed() < last); };
  const int64_t faster = std::count_if(open.begin(), open.end(), may_be_faster) -
                         std::count_if(front.begin(), front.end(), may_be_faster);
  result.untried = faster;
  result.slower = static_cast<int64_t>(open.size() - front.size()) - faster;
  trials.try_all(front, 0, fitting);
  std::sort(fitting.begin(), fitting.end(), faster_by_trial);
  return fitting;
}

/// Plans the fastest layouts and the front, each once.
void report(const Trials& trials, const std::vector<LayoutCandidate>& fitting, size_t count,
            const LoadRecipe& load, SearchResult& result) {
  for (const LayoutCandidate& c : fitting)
    result.tried.push_back({c.layout, c.trial.step_seconds, c.trial.bytes});
  const size_t fastest = std::min(count, fitting.size());
  std::vector<LayoutCandidate> listed{fitting.begin(),
                                      fitting.begin() + static_cast<std::ptrdiff_t>(fastest)};
  std::vector<size_t> front;  // positions in `listed`
  for (const LayoutCandidate& c : front_of_trials(fitting)) {
    const auto at = std::find_if(listed.begin(), listed.end(),
                                 [&](const LayoutCandidate& other) { return other.index == c.index; });
    front.push_back(static_cast<size_t>(at - listed.begin()));
    if (at == listed.end()) listed.push_back(c);
  }
  result.found = found_layouts(listed, load, trials.recipe(), trials.profile(), trials.limits());
  for (size_t i : front) result.pareto.push_back(result.found[i]);
  result.found.resize(fastest);
  smaller_of_ties(result.found, trials.limits().tie);
}

}  // namespace

SearchResult search_layouts(const LoadRecipe& load, const MachineProfile& profile, const SearchLimits& limits,
                            size_t count, int64_t most_trials) {
  SearchResult result;
  const Recipe recipe = load({});
  Trials trials(recipe, profile, limits);
  const Trials::Space space = trials.enumerate();
  result.looked_at = space.looked_at;
  result.allowed = space.allowed;
  result.bound_seconds = trials.seconds();

  std::vector<LayoutCandidate> open;
  std::copy_if(space.candidates.begin(), space.candidates.end(), std::back_inserter(open),
               [&](const LayoutCandidate& c) { return trials.may_fit(c); });
  result.may_fit = static_cast<int64_t>(open.size());
  std::vector<LayoutCandidate> fitting = try_candidates(trials, std::move(open), count, most_trials, result);
  if (limits.variants) result.variants = refine(trials, space.candidates, fitting);
  report(trials, fitting, count, load, result);
  if (fitting.empty()) result.advice = advise(trials, space.candidates, load);

  result.composed = trials.composed();
  result.whole = trials.whole();
  result.wrong_bounds = trials.wrong_bounds();
  result.seconds = trials.seconds();
  return result;
}

}  // namespace ltrain
