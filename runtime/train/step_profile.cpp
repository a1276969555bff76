#include "runtime/train/step_profile.h"

#include <algorithm>
#include <fstream>
#include <map>

#include "runtime/checkpoint/files.h"
#include "runtime/plan/make_plan.h"
#include "runtime/telemetry/trace_file.h"

namespace ltrain {
namespace {

constexpr size_t kOpsShown = 12;

struct OpTime {
  int64_t calls = 0;
  double seconds = 0;
  std::optional<double> planned;
};

/// Title of an op: "data/all_reduce". The name alone on the compute stream.
std::string title(std::string_view stream, std::string_view name) {
  return stream == "compute" ? std::string(name) : fmt::format("{}/{}", stream, name);
}

}  // namespace

void StepProfile::begin(int64_t step) {
  timeline_.reset();
  host_.clear();
  const ProfileSettings& p = recipe_.profile;
  if (step < p.step_start || step >= p.step_end ||
      std::find(p.ranks.begin(), p.ranks.end(), rank_) == p.ranks.end())
    return;
  step_ = step;
  begun_ = steady_seconds();
  timeline_.emplace();
}

/// Table of the ops that took longest.
static std::vector<std::string> op_lines(const std::map<std::string, OpTime>& ops, double step_seconds) {
  std::vector<std::pair<std::string, OpTime>> most(ops.begin(), ops.end());
  std::erase_if(most, [](const auto& op) { return op.second.calls == 0; });
  std::stable_sort(most.begin(), most.end(),
                   [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  std::vector<std::string> lines;
  lines.push_back(
      fmt::format("  {:<32} {:>7} {:>10} {:>8} {:>12}", "op", "calls", "ms", "of step", "planned ms"));
  double rest = 0;
  for (size_t i = 0; i < most.size(); ++i) {
    const auto& [name, op] = most[i];
    if (i >= kOpsShown) {
      rest += op.seconds;
      continue;
    }
    lines.push_back(fmt::format("  {:<32} {:>7} {:>10.2f} {:>6.1f} % {:>12}", name, op.calls,
                                op.seconds * 1e3, 100 * op.seconds / step_seconds,
                                op.planned ? fmt::format("{:.2f}", *op.planned * 1e3) : ""));
  }
  if (most.size() > kOpsShown)
    lines.push_back(fmt::format("  {:<32} {:>7} {:>10.2f} {:>6.1f} %",
                                fmt::format("{} others", most.size() - kOpsShown), "", rest * 1e3,
                                100 * rest / step_seconds));
  return lines;
}

std::vector<std::string> StepProfile::end(bool whole) {
  if (!timeline_) return {};
  const double ended = steady_seconds(), step_seconds = ended - begun_;
  host_.push_back({"step", begun_, ended});
  const std::vector<Timeline::Range> ranges = timeline_->ranges();
  std::vector<TraceSlice> slices;
  std::map<std::string, OpTime> ops;
  std::map<std::string, double> busy;
  for (const Timeline::Range& r : ranges) {
    TraceSlice e;
    e.name = r.name, e.layer = r.layer, e.stream = r.stream;
    e.category = r.wire_bytes > 0 ? "collective" : "op";
    e.start = r.start, e.seconds = r.seconds;
    e.wire_bytes = static_cast<double>(r.wire_bytes);
    slices.push_back(e);
    OpTime& op = ops[title(r.stream, r.name)];
    ++op.calls;
    op.seconds += r.seconds;
    busy[std::string(r.stream)] += r.seconds;
  }
  for (const HostRange& h : host_) {
    TraceSlice e;
    e.name = h.name, e.category = "host", e.stream = "host";
    e.start = h.start, e.seconds = h.end - h.start;
    slices.push_back(e);
  }
  const std::string folder = recipe_.output_dir + "/traces",
                    path = fmt::format("{}/step-{}-rank-{}.json", folder, step_, rank_);
  make_folders(folder);
  std::ofstream out(path);
  out << chrome_trace(fmt::format("rank {}", rank_), rank_, ranks_, begun_, slices);
  out.close();
  if (!out) fail(ExitCode::storage, "{}: cannot be written", path);
  timeline_.reset();

  if (whole)
    for (const TraceEntry& e : step_entries(recipe_, profile_, rank_)) {
      OpTime& op = ops[title(e.stream, e.name)];
      op.planned = op.planned.value_or(0) + e.seconds;
    }
  std::string streams;
  for (const auto& [stream, seconds] : busy)
    streams +=
        fmt::format("{}{} busy {:.1f} %", streams.empty() ? "" : ", ", stream, 100 * seconds / step_seconds);
  std::vector<std::string> lines = op_lines(ops, step_seconds);
  lines.insert(lines.begin(), fmt::format("profile of step {}: {:.1f} ms, {}; trace: {}", step_,
                                          step_seconds * 1e3, streams, path));
  return lines;
}

}  // namespace ltrain
