#include <algorithm>
#include <cmath>
#include <map>

#include "base/svg.h"
#include "planner/report/pictures.h"

namespace ltrain {
namespace {

constexpr double kLane = 34, kLaneGap = 10, kLanesLeft = 130, kLanesWidth = 1400, kLanesTop = 60;
constexpr double kShortest = 0.7;   // minimum width of a box in pixels
constexpr double kColumn = 2;       // pixels shared by narrow boxes of several classes
constexpr size_t kDetailOps = 200;  // compute ops
constexpr const char* kClassFill[kOpClassCount] = {"#4f7fb8", "#8a6bb0", "#f3e39a", "#f2c7a0",
                                                   "#3f8f6b", "#d9665b", "#bfe3e8"};

/// Consecutive entries of one class.
struct Drawn {
  double start = 0, end = 0, seconds = 0;
  int count = 0;
  const TraceEntry* first = nullptr;
};

std::string tooltip(const Drawn& d) {
  const TraceEntry& e = *d.first;
  const std::string what = d.count > 1
                               ? fmt::format("{} of class {}, from {}", d.count, op_class_name(e.cls), e.name)
                               : std::string(e.name);
  return fmt::format("{}{}{}{}: {:.4g} ms from {:.4g} ms", what, e.layer.empty() ? "" : " in ", e.layer,
                     e.axis.empty() ? "" : fmt::format(" over {}", e.axis), d.seconds * 1e3, d.start * 1e3);
}

/// Joins entries narrower than kShortest with neighbours of the same class.
std::vector<Drawn> joined(const std::vector<const TraceEntry*>& lane, double shortest) {
  std::vector<Drawn> out;
  for (const TraceEntry* e : lane) {
    const bool same = !out.empty() && out.back().first->cls == e->cls &&
                      e->start - out.back().end < shortest &&
                      (e->seconds < shortest || out.back().end - out.back().start < shortest);
    if (same) {
      Drawn& d = out.back();
      d.end = std::max(d.end, e->start + e->seconds);
      d.seconds += e->seconds;
      ++d.count;
    } else {
      out.push_back({e->start, e->start + e->seconds, e->seconds, 1, e});
    }
  }
  return out;
}

/// Boxes over the same pixels, one per class.
struct Column {
  bool narrow = false;
  std::vector<Drawn> boxes;
};

/// Groups boxes narrower than kShortest with the following ones into columns of kColumn pixels, so that a
/// step of 100,000 ops is drawn with some thousands of boxes per stream.
std::vector<Column> columns(const std::vector<Drawn>& lane, double shortest, double column) {
  std::vector<Column> out;
  for (const Drawn& d : lane) {
    const bool narrow = d.end - d.start < shortest;
    if (out.empty() || !narrow || !out.back().narrow || d.start >= out.back().boxes[0].start + column)
      out.push_back({narrow, {}});
    std::vector<Drawn>& boxes = out.back().boxes;
    const auto same = std::find_if(boxes.begin(), boxes.end(),
                                   [&](const Drawn& o) { return o.first->cls == d.first->cls; });
    if (same != boxes.end())
      same->seconds += d.seconds, same->count += d.count, same->end = std::max(same->end, d.end);
    else
      boxes.push_back(d);
  }
  return out;
}

}  // namespace

std::vector<TraceEntry> first_part(const std::vector<TraceEntry>& entries) {
  size_t ops = 0;
  double end = INFINITY;
  for (const TraceEntry& e : entries)
    if (e.stream == "compute" && e.seconds > 0 && ++ops == kDetailOps) end = e.start + e.seconds;
  std::vector<TraceEntry> out;
  for (TraceEntry e : entries) {
    if (e.start >= end) continue;
    e.seconds = std::min(e.seconds, end - e.start);
    out.push_back(std::move(e));
  }
  return out;
}

std::string timeline_svg(const std::vector<TraceEntry>& entries, int rank) {
  std::vector<std::string_view> names;  // in the order of first use
  std::map<std::string_view, std::vector<const TraceEntry*>> lanes;
  double end = 0;
  for (const TraceEntry& e : entries) {
    if (e.seconds <= 0) continue;
    std::vector<const TraceEntry*>& lane = lanes[e.stream];
    if (lane.empty()) names.push_back(e.stream);
    lane.push_back(&e);
    end = std::max(end, e.start + e.seconds);
  }
  // Compute is drawn above the streams that it waits for.
  std::stable_partition(names.begin(), names.end(), [](std::string_view n) { return n == "compute"; });
  const double scale = end > 0 ? kLanesWidth / end : 0, shortest = end > 0 ? kShortest / scale : 0;
  Svg svg(fmt::format("a step of rank {} over its streams", rank));
  svg.text(8, 18,
           fmt::format("rank {}, {:.1f} ms; compute waits for what stands below its gaps; half high: busy "
                       "half of the time",
                       rank, end * 1e3));
  double x = 8;
  for (int c = 0; c < kOpClassCount; ++c) {
    const std::string name(op_class_name(static_cast<OpClass>(c)));
    svg.legend(x, 42, kClassFill[c], name);
    x += 30 + Svg::text_width(name.size());
  }
  double y = kLanesTop;
  for (const std::string_view name : names) {
    std::vector<const TraceEntry*>& lane = lanes.at(name);
    std::stable_sort(lane.begin(), lane.end(),
                     [](const TraceEntry* a, const TraceEntry* b) { return a->start < b->start; });
    double busy = 0;
    for (const TraceEntry* e : lane) busy += e->seconds;
    svg.text(8, y + 14, std::string(name));
    svg.text(8, y + 30, fmt::format("{:.1f} ms", busy * 1e3));
    svg.box({kLanesLeft, y, kLanesWidth, kLane}, "#f4f4f4", {}, 0);
    for (const Column& column : columns(joined(lane, shortest), shortest, kColumn / scale)) {
      // Boxes are stacked, each as high as its share of the time: half height if half of the time is idle.
      double start = column.boxes[0].start, until = start, sum = 0, foot = y + kLane;
      for (const Drawn& d : column.boxes) until = std::max(until, d.end), sum += d.seconds;
      for (const Drawn& d : column.boxes) {
        const double height = std::max(1.0, kLane * d.seconds / std::max(sum, until - start));
        foot -= height;
        svg.box({kLanesLeft + start * scale, foot, std::max(kShortest, (until - start) * scale), height},
                kClassFill[static_cast<int>(d.first->cls)], tooltip(d), 0,
                fmt::format(" data-ops=\"{}\" data-seconds=\"{:.9g}\"", d.count, d.seconds));
      }
    }
    y += kLane + kLaneGap;
  }
  for (int i = 0; i <= 10; ++i) {
    const double at = kLanesLeft + kLanesWidth * i / 10;
    svg.line({at, y - 4, at, y + 2}, "#555555");
    svg.text(at, y + 16, fmt::format("{:.{}f} ms", end * 1e3 * i / 10, end < 1 ? 2 : 0),
             i == 10 ? "end" : "middle");
  }
  return svg.document(kLanesLeft + kLanesWidth + 40, y + 28);
}

}  // namespace ltrain
