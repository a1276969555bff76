// Ops and collectives of a plan, summed over a trace.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "base/interned.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/meta_rank.h"
#include "runtime/telemetry/exposed.h"

namespace ltrain {
namespace {

/// Times that each of the first `count` entries counts: 1, and 1 more for each repetition.
std::vector<int64_t> times_counted(const MetaTrace& trace, size_t count) {
  std::vector<int64_t> times(count, 1);
  for (const MetaTrace::Part& p : trace.repeats())
    for (size_t i = p.first; i < std::min(p.last, count); ++i) ++times[i];
  return times;
}

}  // namespace

void add_ops(RankPlan& plan, const MetaTrace& trace, size_t count) {
  // Texts of entries are interned, so equal addresses mean equal texts.
  std::map<std::array<std::string_view, 3>, CollectivePlan> collectives;
  std::map<std::tuple<const char*, const char*, uint16_t>, CollectivePlan*> collective_at;
  std::map<std::string_view, OpPlan> ops;
  std::unordered_map<const char*, OpPlan*> op_at;
  const std::vector<int64_t> counted = times_counted(trace, count);
  for (size_t i = 0; i < count; ++i) {
    const TraceEntry& e = trace.entries()[i];
    const int64_t times = counted[i];
    const auto all = static_cast<double>(times);
    if (e.cls == OpClass::collective) {
      CollectivePlan*& at = collective_at[{e.axis.data(), e.collective.data(), e.axes.bits}];
      if (!at) at = &collectives[{e.axis, e.collective, interned(comm_axis(e.axes))}];
      CollectivePlan& c = *at;
      if (c.calls == 0) c.axis = e.axis, c.group = comm_axis(e.axes), c.op = e.collective;
      c.calls += times;
      c.bytes += times * static_cast<int64_t>(e.bytes);
      c.wire_bytes += times * static_cast<int64_t>(e.wire_bytes);
      c.network_bytes += times * std::llround(e.network_bytes);
      c.seconds += all * e.seconds;
    }
    add_states_moved(plan, e);
    plan.skips_zeros = plan.skips_zeros || e.nonzeros < 1;
    OpPlan*& at = op_at[e.name.data()];
    if (!at) at = &ops[e.name];
    OpPlan& o = *at;
    if (o.calls == 0) o.name = e.name;
    o.calls += times;
    o.flops += all * e.flops;
    o.bytes += all * e.bytes;
    o.seconds += all * e.seconds;
  }
  for (auto& [key, c] : collectives) plan.collectives.push_back(c);
  for (auto& [key, o] : ops) plan.ops.push_back(o);
  std::stable_sort(plan.ops.begin(), plan.ops.end(),
                   [](const OpPlan& a, const OpPlan& b) { return a.seconds > b.seconds; });
}

}  // namespace ltrain
