#include <algorithm>

#include "base/bytes_text.h"
#include "base/svg.h"
#include "planner/report/pictures.h"

namespace ltrain {
namespace {

constexpr int kMostNodes = 32, kNodesInRow = 4, kRanksInRow = 4, kMostRanks = 16;  // limits of the drawing
constexpr double kCell = 74, kCellHeight = 58, kNodeGap = 34, kMapTop = 56;
constexpr double kNodeWidth = kRanksInRow * kCell + 12;
/// Colours by pipeline stage, repeating.
constexpr const char* kStageFill[] = {"#dbe9f9", "#f9e3cf", "#dff2df", "#eee0f7",
                                      "#fdf6cf", "#d9f1f3", "#f7dada", "#ececec"};

/// Megatron-LM's names, and short names of the other axes.
constexpr std::string_view kShortName[kAxisCount] = {"dp",  "pp",  "cp",  "tp", "ep",
                                                     "rep", "dep", "row", "col"};

/// Wraps text at spaces into lines of at most `most` characters.
std::vector<std::string> wrapped(const std::string& text, size_t most) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.size(), at + most);
    if (end < text.size())
      if (const size_t space = text.rfind(' ', end); space != std::string::npos && space > at) end = space;
    lines.push_back(text.substr(at, end - at));
    at = end + (end < text.size() && text[end] == ' ' ? 1 : 0);
  }
  return lines;
}

/// "tp3 dp1".
std::string coordinates(const RankMap& map, const MappedRank& r) {
  std::string text;
  for (const AxisSpan& a : map.axes)
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", kShortName[static_cast<int>(a.axis)],
                        r.mesh.coordinate(a.axis));
  return text;
}

/// The planned rank of its pipeline stage. All ranks of a stage send the same.
const RankPlan& planned(const Plan& plan, const MappedRank& r) {
  const auto stage = static_cast<size_t>(r.mesh.coordinate(Axis::pipeline));
  return plan.ranks[plan.stages > 0 ? std::min(stage, plan.ranks.size() - 1) : 0];
}

int64_t network_bytes(const RankPlan& r) {
  int64_t bytes = 0;
  for (const CollectivePlan& c : r.collectives) bytes += c.network_bytes;
  return bytes;
}

std::string rank_tooltip(const RankMap& map, const Plan& plan, const MappedRank& r) {
  std::string text = fmt::format("rank {} on {}, {}\n{}", r.mesh.rank, r.host, r.device, coordinates(map, r));
  for (const CollectivePlan& c : planned(plan, r).collectives)
    if (c.wire_bytes > 0)
      text +=
          fmt::format("\n{} {}: sends {} a step{}", c.axis, c.op, bytes_text(c.wire_bytes),
                      c.network_bytes > 0 ? fmt::format(", {} to other nodes", bytes_text(c.network_bytes))
                                          : std::string());
  return text;
}

/// Draws a rank as a cell: its number, its coordinates, and all of its plan as a tooltip.
void draw_rank(Svg& svg, const RankMap& map, const Plan& plan, int r, double left, double top) {
  const MappedRank& rank = map.ranks[static_cast<size_t>(r)];
  svg.box({left, top, kCell - 4, kCellHeight - 4}, kStageFill[rank.mesh.coordinate(Axis::pipeline) % 8],
          rank_tooltip(map, plan, rank), 0.6, fmt::format(" data-rank=\"{}\"", r));
  svg.text(left + 4, top + 15, fmt::format("{}", r));
  const auto fits = static_cast<size_t>((kCell - 8) / Svg::text_width(1));
  double line = top + 15;
  for (const std::string& part : wrapped(coordinates(map, rank), fits)) svg.text(left + 4, line += 13, part);
}

/// Writes the axes and the notes below the nodes. Returns the height.
double draw_legend(Svg& svg, const RankMap& map, double y) {
  for (const AxisSpan& a : map.axes) {
    svg.text(8, y,
             fmt::format("{}: {} groups of {}, {}", axis_name(a.axis), a.groups, a.size,
                         a.most_nodes == 1 ? std::string("each within a node")
                                           : fmt::format("over {} nodes", a.most_nodes)));
    y += 16;
  }
  for (const std::string& note : map.notes) {
    svg.text(8, y, "note: " + note);
    y += 16;
  }
  return y;
}

}  // namespace

std::string rank_map_svg(const RankMap& map, const Plan& plan) {
  const int world = static_cast<int>(map.ranks.size());
  const int per_node = std::max(1, map.ranks_per_node), nodes = (world + per_node - 1) / per_node;
  const int drawn_nodes = std::min(nodes, kMostNodes), drawn_ranks = std::min(per_node, kMostRanks);
  const int rows = (drawn_ranks + kRanksInRow - 1) / kRanksInRow;
  const double node_height = rows * kCellHeight + 66;
  Svg svg(fmt::format("{} ranks on {} nodes", world, nodes));
  svg.text(8, 18,
           fmt::format("{} ranks, {} a node, parallel.order {}; bytes are those that a step sends", world,
                       per_node, map.order));
  svg.text(
      8, 36,
      fmt::format("colour: pipeline stage; {}",
                  map.axes.empty() ? "one rank along every axis" : "in a rank: its number and coordinates"));
  double bottom = kMapTop;
  for (int n = 0; n < drawn_nodes; ++n) {
    const double x = 8 + n % kNodesInRow * (kNodeWidth + kNodeGap);
    const double y = kMapTop + n / kNodesInRow * (node_height + 12);
    const int first = n * per_node, last = std::min(world, first + per_node);
    int64_t inside = 0, outside = 0;
    for (int r = first; r < last; ++r) {
      const RankPlan& p = planned(plan, map.ranks[static_cast<size_t>(r)]);
      outside += network_bytes(p);
      inside += p.train_wire_bytes - network_bytes(p);
    }
    svg.box({x, y, kNodeWidth, node_height - 8}, "#ffffff", {}, 1.2,
            fmt::format(" data-node=\"{}\" data-inside-bytes=\"{}\" data-network-bytes=\"{}\"", n, inside,
                        outside));
    svg.text(x + 6, y + 15, map.ranks[static_cast<size_t>(first)].host);
    for (int r = first; r < std::min(last, first + drawn_ranks); ++r) {
      const int at = r - first;
      draw_rank(svg, map, plan, r, x + 6 + at % kRanksInRow * kCell, y + 22 + at / kRanksInRow * kCellHeight);
    }
    const double below = y + 22 + rows * kCellHeight;
    svg.text(
        x + 6, below + 12,
        fmt::format("within: {}{}", bytes_text(inside),
                    last - first > drawn_ranks ? fmt::format("; {} ranks more", last - first - drawn_ranks)
                                               : std::string()));
    svg.text(x + 6, below + 27, fmt::format("to other nodes: {}", bytes_text(outside)));
    if (outside > 0 && n + 1 < drawn_nodes && (n + 1) % kNodesInRow != 0) {
      const double at = y + node_height / 2;
      svg.line({x + kNodeWidth, at, x + kNodeWidth + kNodeGap, at}, "#c00000", 3);
    }
    bottom = std::max(bottom, y + node_height);
  }
  if (nodes > drawn_nodes) svg.text(8, bottom + 16, fmt::format("and {} nodes more", nodes - drawn_nodes));
  const double y = draw_legend(svg, map, bottom + (nodes > drawn_nodes ? 38 : 20));
  return svg.document(16 + kNodesInRow * (kNodeWidth + kNodeGap), y + 12);
}

}  // namespace ltrain
