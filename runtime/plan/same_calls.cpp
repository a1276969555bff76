#include "runtime/plan/same_calls.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "parallel/comm/recorded_calls.h"
#include "runtime/plan/meta_rank.h"
#include "runtime/plan/on_all_cores.h"

namespace ltrain {
namespace {

/// Calls by group, keyed by name and members.
using CallsByGroup = std::map<std::pair<std::string, std::vector<int>>, std::vector<RecordedCall>>;

/// Tested coordinates of an axis of `size`.
std::vector<int> coordinates(int size) {
  std::vector<int> all;
  for (int i = 0; i < size; ++i)
    if (size <= kWholeAxis || i < 4 || i == size / 2 || i >= size - 2) all.push_back(i);
  return all;
}

/// Micro-batches of the compared step: one that writes gradients, one that adds to them, and one after which
/// they are reduced. With a pipeline, enough to fill it twice.
int64_t compared_micros(const Recipe& r) {
  const int64_t enough = r.parallel.pipeline > 1 ? 2 * r.parallel.pipeline : 3;
  return std::min(micro_batches_per_step(r), enough);
}

CallsByGroup calls_of(const Recipe& recipe, const MachineProfile& profile, const PipelineLayout& layout,
                      int rank) {
  return with_repeats(recipe, profile, layout, rank, threads_per_rank(recipe), [&](MetaRank& meta) {
    meta.trace.keep_entries(false);
    for (const int64_t step : step_kinds(meta.program.options().optimizer).all()) {
      OptimizerStep args;
      args.step = step;
      meta.program.train_step(std::vector<HostBatch>(static_cast<size_t>(compared_micros(recipe))), args);
    }
    if (recipe.train.eval_interval > 0 || recipe.train.routing_probe_interval > 0) meta.evaluate_once();
    CallsByGroup out;
    for (const Communicator* group : meta.groups.groups().all())
      if (const RecordedCalls* r = recorded_calls(*group); r && group->size() > 1)
        out[{group->name(), r->members}] = r->calls;
    return out;
  });
}

/// Normalizes a call for comparison: a transfer is sent by one rank and received by the other.
CollectiveInfo seen_by_both(CollectiveInfo info) {
  if (info.op == CollectiveOp::recv) info.op = CollectiveOp::send;
  return info;
}

std::string describe(const std::vector<RecordedCall>& calls, size_t i) {
  if (i >= calls.size()) return fmt::format("nothing after {} calls", calls.size());
  return fmt::format("{} in {}", to_string(calls[i].info),
                     calls[i].layer.empty() ? "the step" : calls[i].layer);
}

}  // namespace

std::vector<int> ranks_to_compare(const Recipe& recipe) {
  std::set<int> ranks;
  const Mesh first = mesh_of(recipe, 0);
  const auto along = [&](const Mesh& from, Axis a) {
    std::vector<Mesh> out;
    for (const int c : coordinates(from.size(a))) {
      out.push_back(from);
      out.back().rank = from.at(a, c);
    }
    return out;
  };
  const int stages = first.size(Axis::pipeline);
  for (const int stage : {0, std::min(1, stages - 1), stages - 1}) {
    Mesh begin = first;
    begin.rank = first.at(Axis::pipeline, stage);
    for (int i = 0; i < kAxisCount; ++i)
      if (const Axis a = static_cast<Axis>(i); a != Axis::pipeline)
        for (const Mesh& m : along(begin, a)) ranks.insert(m.rank);
    const AxisSet grid = Axis::depth | Axis::row | Axis::column;
    if (begin.size(grid) > kWholeGrid) continue;
    for (const int rank : begin.group(grid)) ranks.insert(rank);
  }
  if (first.sites > 1)
    for (const int rank : std::vector<int>(ranks.begin(), ranks.end()))
      ranks.insert(rank + (first.sites - 1) * first.site_ranks());
  return {ranks.begin(), ranks.end()};
}

void check_same_calls(const Recipe& recipe, const MachineProfile& profile, const PipelineLayout& layout,
                      const std::vector<int>& ranks) {
  std::vector<CallsByGroup> all(ranks.size());
  on_all_cores(ranks.size(), [&](size_t i) { all[i] = calls_of(recipe, profile, layout, ranks[i]); });
  // First rank of each group, with which the others are compared.
  std::map<CallsByGroup::key_type, size_t> firsts;
  for (size_t i = 0; i < ranks.size(); ++i)
    for (const auto& [group, mine] : all[i]) {
      const size_t other = firsts.emplace(group, i).first->second;
      const std::vector<RecordedCall>& theirs = all[other].at(group);
      size_t at = 0;
      while (at < std::min(mine.size(), theirs.size()) &&
             same_call(seen_by_both(mine[at].info), seen_by_both(theirs[at].info)))
        ++at;
      if (at == mine.size() && at == theirs.size()) continue;
      fail(
          ExitCode::internal,
          "placement error: ranks of group \"{}\" make different calls: rank {} of the job makes {}, rank {} "
          "makes {}\n  fix: all ranks of a group must make the same collectives in the same order with the "
          "same sizes",
          group.first, ranks[other], describe(theirs, at), ranks[i], describe(mine, at));
    }
}

}  // namespace ltrain
