#include <algorithm>

#include "base/bytes_text.h"
#include "base/svg.h"
#include "planner/report/pictures.h"
#include "runtime/plan/memory_limits.h"

namespace ltrain {
namespace {

constexpr double kBar = 24, kRowHeight = 40, kBarsLeft = 150, kBarsWidth = 720, kBarsTop = 66;

struct Segment {
  std::string kind;
  int64_t bytes = 0;
  const char* fill = "#ffffff";
};

struct Bar {
  std::string name;
  std::vector<Segment> segments;
  int64_t total = 0, available = 0;  ///< 0: unknown
};

/// Alternating light and dark colours, so that neighbours differ in print too.
constexpr const char* kKindFill[kMemoryKindCount] = {"#4f7fb8", "#f2c7a0", "#3f8f6b", "#f3e39a",
                                                     "#8a6bb0", "#bfe3e8", "#b5603f"};
constexpr const char* kGapFill = "#ffffff";
constexpr const char* kOutsideFill = "#b0b0b0";

std::string bar_name(const Plan& plan, const RankPlan& r) {
  if (plan.stages <= 1) return fmt::format("rank {}", r.rank);
  const auto stage = static_cast<size_t>(&r - plan.ranks.data());
  if (stage < static_cast<size_t>(plan.stages)) return fmt::format("stage {}, rank {}", stage, r.rank);
  return fmt::format("{}, rank {}", &r == &plan.ranks.back() ? "last" : "other site", r.rank);
}

int64_t available_of(const Plan& plan, DeviceKind of) {
  for (const MemoryLimit& limit : memory_limits(plan))
    if (limit.of == of) return limit.available_bytes / limit.ranks;
  return 0;
}

std::vector<Bar> bars_of(const Plan& plan) {
  std::vector<Bar> bars;
  for (const RankPlan& r : plan.ranks) {
    Bar bar{.name = bar_name(plan, r),
            .segments = {},
            .total = r.total_bytes,
            .available = available_of(plan, plan.device)};
    for (int k = 0; k < kMemoryKindCount; ++k)
      bar.segments.push_back({std::string(memory_kind_name(static_cast<MemoryKind>(k))),
                              r.arena.by_kind[static_cast<size_t>(k)], kKindFill[k]});
    bar.segments.push_back({"gaps between tensors", r.arena.arena_bytes - r.arena.live_bytes, kGapFill});
    for (const ExternalMemory& e : r.outside)
      if (e.where == plan.device) bar.segments.push_back({"outside: " + e.name, e.bytes, kOutsideFill});
    bars.push_back(std::move(bar));
    if (plan.device == DeviceKind::cpu || r.host_bytes == 0) continue;
    Bar host{.name = "  its host memory",
             .segments = {},
             .total = r.host_bytes,
             .available = available_of(plan, DeviceKind::cpu)};
    if (r.staging_bytes > 0) host.segments.push_back({"staging", r.staging_bytes, kKindFill[0]});
    for (const ExternalMemory& e : r.outside)
      if (e.where == DeviceKind::cpu) host.segments.push_back({"host: " + e.name, e.bytes, kOutsideFill});
    bars.push_back(std::move(host));
  }
  return bars;
}

}  // namespace

std::string memory_svg(const Plan& plan) {
  const std::vector<Bar> bars = bars_of(plan);
  int64_t most = 1;
  for (const Bar& bar : bars) most = std::max({most, bar.total, bar.available});
  const double scale = kBarsWidth / static_cast<double>(most);
  Svg svg(fmt::format("memory of the ranks of {}", plan.recipe_name));
  svg.text(8, 18, "memory of ranks at the peak of their arena, which is allocated once");
  double x = 8;
  for (int k = 0; k < kMemoryKindCount; ++k) {
    const std::string name(memory_kind_name(static_cast<MemoryKind>(k)));
    if (std::none_of(plan.ranks.begin(), plan.ranks.end(),
                     [&](const RankPlan& r) { return r.arena.by_kind[static_cast<size_t>(k)] > 0; }))
      continue;
    svg.legend(x, 44, kKindFill[k], name);
    x += 24 + Svg::text_width(name.size());
  }
  svg.legend(x, 44, kGapFill, "gaps");
  svg.legend(x + 60, 44, kOutsideFill, "external memory");
  double y = kBarsTop;
  for (const Bar& bar : bars) {
    svg.text(8, y + 16, bar.name);
    double left = kBarsLeft;
    for (const Segment& s : bar.segments) {
      if (s.bytes <= 0) continue;
      const double width = static_cast<double>(s.bytes) * scale;
      svg.box({left, y, width, kBar}, s.fill, fmt::format("{}: {}", s.kind, bytes_text(s.bytes)), 0.6,
              fmt::format(" data-bytes=\"{}\"", s.bytes));
      left += width;
    }
    if (bar.available > 0) {
      const double at = kBarsLeft + static_cast<double>(bar.available) * scale;
      svg.line({at, y - 4, at, y + kBar + 4}, "#c00000", 2, "5,3");
    }
    svg.text(kBarsLeft + kBarsWidth + 12, y + 16,
             bar.available > 0 ? fmt::format("{} of {}{}", bytes_text(bar.total), bytes_text(bar.available),
                                             bar.total > bar.available ? ": does not fit" : "")
                               : bytes_text(bar.total));
    y += kRowHeight;
  }
  svg.text(kBarsLeft, y + 12,
           "dashed: what a rank has; one rank a stage is drawn, the others of it are alike");
  return svg.document(kBarsLeft + kBarsWidth + 320, y + 28);
}

}  // namespace ltrain
