// Recompute policy: as in the recipe, or chosen by planning.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/bytes_text.h"
#include "runtime/launch/cgroup.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/program/recipe_program.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain {
namespace {

/// Time of the slowest rank and bytes of the largest, among the ranks of a plan.
struct Outcome {
  double seconds = 0;
  int64_t bytes = 0;
};

Outcome outcome(const Recipe& r, const MachineProfile& profile, PipelineLayout layout,
                const RecomputeOptions& o) {
  layout.recompute = o;
  PipelinePlan pipeline = priced_pipeline(r, profile, layout);
  std::vector<RankPlan> ranks;
  for (const int rank : ranks_to_plan(r, profile))
    ranks.push_back(plan_rank(r, profile, layout, rank, threads_per_rank(r)));
  place_actions(ranks, r, profile, pipeline);
  Outcome out;
  for (const RankPlan& rank : ranks) {
    out.seconds = std::max(out.seconds, rank.step_seconds);
    out.bytes = std::max(out.bytes, rank.total_bytes);
  }
  return out;
}

/// Ways from the cheapest to the one that needs least memory: tensors of a layer, then whole layers. `most`:
/// layers of the stage that has most.
std::vector<RecomputeOptions> ways_to_recompute(int64_t most) {
  using enum BlockTensor;
  const int64_t root = std::max<int64_t>(2, std::llround(std::sqrt(static_cast<double>(most))));
  std::vector<RecomputeOptions> ways;
  for (const BlockTensorSet& s :
       {set_of({attention_norm, mlp_norm}), set_of({mlp_activation, mlp_norm, attention_norm}),
        set_of({mlp_hidden, mlp_activation, mlp_norm, attention_norm}),
        set_of({attention, attention_norm, mlp_norm})})
    ways.push_back({0, -1, s});
  ways.push_back({1, -1, {}});
  if (most > 2) ways.push_back({root, -1, {}});
  return ways;
}

}  // namespace

RecomputeOptions choose_recompute(const Recipe& r, const MachineProfile& profile,
                                  const PipelineLayout& layout) {
  const double budget = r.recompute.budget ? recipe::read_bytes(*r.recompute.budget)
                        : device_of(r) == DeviceKind::cuda
                            ? static_cast<double>(profile.device_bytes)
                            : static_cast<double>(host_memory_bytes() / r.launch.ranks_on_host);
  const auto fits = [&](const Outcome& o) { return static_cast<double>(o.bytes) <= budget; };
  const Outcome stored = outcome(r, profile, layout, {});
  if (fits(stored)) return {};
  const int64_t most = layout.stage_layers.empty()
                           ? r.model.num_hidden_layers
                           : *std::max_element(layout.stage_layers.begin(), layout.stage_layers.end());
  std::optional<RecomputeOptions> best;
  double seconds = 0;
  int64_t least = stored.bytes;
  for (RecomputeOptions way : ways_to_recompute(most)) {
    Outcome at = outcome(r, profile, layout, way);
    least = std::min(least, at.bytes);
    if (!fits(at)) continue;
    way.layers = most;
    // Recompute as few layers as possible. Memory decreases with their number.
    for (int64_t low = 1; low < way.layers && way.run <= 1;) {
      RecomputeOptions fewer = way;
      fewer.layers = (low + way.layers) / 2;
      if (const Outcome o = outcome(r, profile, layout, fewer); fits(o)) {
        way = fewer;
        at = o;
      } else {
        low = fewer.layers + 1;
      }
    }
    if (best && at.seconds >= seconds) continue;
    best = way;
    seconds = at.seconds;
  }
  if (best) return *best;
  if (!r.recompute.budget)
    fail(ExitCode::does_not_fit,
         "does not fit: recompute.granularity: auto: a rank needs {} even when it computes most again ({} "
         "without), {} has {}; what would help: {}",
         bytes_text(least), bytes_text(stored.bytes),
         device_of(r) == DeviceKind::cuda ? "a card" : "a rank's share of this host",
         bytes_text(static_cast<int64_t>(budget)), fmt::join(smaller_settings(r), ", "));
  fail(ExitCode::usage,
       "{}recompute.budget = {}: a rank needs {} even when it computes most again, and {} without; nearest "
       "valid value: {:.0f} "
       "MiB, or a smaller train.micro_batch_size or data.seq_length",
       r.origins ? r.origins->place("recompute.budget").text() + ": " : "", *r.recompute.budget,
       bytes_text(least), bytes_text(stored.bytes), std::ceil(static_cast<double>(least) / kMiB));
}

}  // namespace ltrain
