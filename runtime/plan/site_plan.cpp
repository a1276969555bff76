#include "runtime/plan/site_plan.h"

#include <algorithm>
#include <map>
#include <queue>

#include "runtime/program/recipe_program.h"
#include "runtime/recipe/rules/rules.h"

namespace ltrain {
namespace {

/// Smallest gain of other shares that is shown.
constexpr double kWorthSaying = 0.99;

/// Step time of the slowest planned rank of each site.
std::vector<double> seconds_of_sites(const std::vector<RankPlan>& ranks, const Recipe& recipe,
                                     const MachineProfile& profile) {
  std::map<SiteKind, double> slowest;
  for (const RankPlan& r : ranks) {
    double& seconds = slowest[site_kind(recipe, profile, mesh_of(recipe, r.rank).site())];
    seconds = std::max(seconds, r.step_seconds);
  }
  std::vector<double> out;
  for (int site = 0; site < recipe.diloco.sites; ++site)
    out.push_back(slowest.at(site_kind(recipe, profile, site)));
  return out;
}

double step_seconds_with(const Recipe& recipe, const MachineProfile& profile, int threads) {
  PipelinePlan pipeline = plan_pipeline(recipe, profile);
  lower_once(pipeline.layout);
  std::vector<RankPlan> ranks;
  for (const int rank : ranks_to_plan(recipe, profile))
    ranks.push_back(plan_rank(recipe, profile, pipeline.layout, rank, threads));
  place_actions(ranks, recipe, profile, pipeline);
  return std::ranges::max(seconds_of_sites(ranks, recipe, profile));
}

}  // namespace

SiteKind site_kind(const Recipe& recipe, const MachineProfile& profile, int site) {
  const Mesh mesh = mesh_of(recipe, 0);
  return {micro_batches_of_site(recipe, site), &profile.at(site * mesh.site_ranks(), mesh.world())};
}

std::vector<int> ranks_of_other_sites(const Recipe& recipe, const MachineProfile& profile) {
  const Mesh first = mesh_of(recipe, 0);
  std::vector<int> ranks;
  std::vector<SiteKind> known{site_kind(recipe, profile, 0)};
  for (int site = 1; site < first.sites; ++site) {
    const SiteKind kind = site_kind(recipe, profile, site);
    if (std::ranges::find(known, kind) != known.end()) continue;
    known.push_back(kind);
    for (int stage = 0; stage < first.size(Axis::pipeline); ++stage)
      ranks.push_back(site * first.site_ranks() + first.at(Axis::pipeline, stage));
  }
  return ranks;
}

std::vector<int64_t> equalized_micros(const std::vector<double>& seconds, int64_t micros) {
  using End = std::pair<double, size_t>;  // end of a site's next micro-batch
  std::vector<int64_t> out(seconds.size(), 1);
  std::priority_queue<End, std::vector<End>, std::greater<>> next;
  for (size_t s = 0; s < seconds.size(); ++s) next.emplace(2 * seconds[s], s);
  for (auto left = micros - static_cast<int64_t>(seconds.size()); left > 0; --left) {
    const size_t site = next.top().second;
    next.pop();
    next.emplace(static_cast<double>(++out[site] + 1) * seconds[site], site);
  }
  return out;
}

void plan_sites(Plan& plan, const Recipe& recipe, const MachineProfile& profile) {
  const SiteShare share = recipe.diloco.share(0);
  plan.first_share = recipe.diloco.weight(0);
  if (ranks_of_other_sites(recipe, profile).empty()) return;
  const std::vector<double> seconds = seconds_of_sites(plan.ranks, recipe, profile);
  std::vector<double> each;
  for (size_t s = 0; s < seconds.size(); ++s) {
    plan.sites.push_back({micro_batches_of_site(recipe, static_cast<int64_t>(s)), seconds[s]});
    each.push_back(seconds[s] / static_cast<double>(plan.sites.back().micros));
  }
  const int64_t micros = plan.sites[0].micros / share.count * share.of;
  if (micros > 1'000'000 || recipe.train.batch_ramp.start > 0) return;
  Recipe other = recipe;
  other.diloco.shares = equalized_micros(each, micros);
  const int64_t unit = std::reduce(other.diloco.shares.begin(), other.diloco.shares.end(), int64_t{0},
                                   std::gcd<int64_t, int64_t>);
  for (int64_t& n : other.diloco.shares) n /= unit;
  if (other.diloco.share(0).of == share.of && other.diloco.weight(0) == recipe.diloco.weight(0) &&
      std::ranges::equal(other.diloco.shares, plan.sites, {}, {},
                         [&](const SitePlan& s) { return s.micros / unit; }))
    return;
  try {
    const double with = step_seconds_with(other, profile, plan.threads_per_rank);
    if (with < kWorthSaying * std::ranges::max(seconds)) plan.better = {other.diloco.shares, with};
  } catch (const Error&) {  // a schedule of the pipeline that needs other numbers of micro-batches
  }
}

}  // namespace ltrain
